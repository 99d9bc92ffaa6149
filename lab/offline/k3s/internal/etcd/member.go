package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"busbar/lab/k3s/internal/logx"
)

const (
	localEndpoint = "https://127.0.0.1:2379"
	callTimeout   = 5 * time.Second
	joinDeadline  = 2 * time.Minute
	pollInterval  = 500 * time.Millisecond
	manageEvery   = time.Second
)

// Client connects to the given endpoints (none: this server's own etcd).
func (i Instance) Client(endpoints ...string) (*clientv3.Client, error) {
	pair, err := tls.LoadX509KeyPair(i.tls("client.crt"), i.tls("client.key"))
	if err != nil {
		return nil, err
	}
	bundle, err := os.ReadFile(i.tls("server-ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	if len(endpoints) == 0 {
		endpoints = []string{localEndpoint}
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: callTimeout, DialKeepAliveTime: 30 * time.Second,
		DialKeepAliveTimeout: callTimeout, Logger: zap.NewNop(),
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool},
	})
}

// ErrDuplicateName is K3s's message for a server whose name another member has (pkg/etcd/etcd.go).
var ErrDuplicateName = errors.New("duplicate node name found, please use a unique name for this node")

// Join adds this server to a cluster as a learner and writes the configuration that etcd starts with. Another member
// with this Node's name is final; the name of this member is forgotten then, as in K3s.
func (i Instance) Join(ctx context.Context, endpoints []string) error {
	if err := os.RemoveAll(filepath.Join(i.dir(), "member")); err != nil {
		return err
	}
	client, err := i.Client(endpoints...)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	name, err := i.Name()
	if err != nil {
		return err
	}
	deadline, cancel := context.WithTimeout(ctx, joinDeadline)
	defer cancel()
	for {
		peers, err := i.add(deadline, client, name)
		if err == nil {
			logx.Infof("Starting etcd for cluster %v", peers)
			return i.WriteConfig(strings.Join(peers, ","), "existing")
		}
		if errors.Is(err, ErrDuplicateName) {
			return errors.Join(err, os.Remove(i.nameFile()))
		}
		// "unhealthy cluster", "too many learner members": another join is still in progress.
		logx.Warnf("Could not join the etcd cluster yet: %v", err)
		select {
		case <-deadline.Done():
			return fmt.Errorf("joining the etcd cluster at %v timed out after %s: %w", endpoints, joinDeadline, err)
		case <-time.After(2 * time.Second):
		}
	}
}

// WaitKnown blocks until the cluster knows this member by name, which means that it has caught up.
func (i Instance) WaitKnown(ctx context.Context, endpoints []string) error {
	client, err := i.Client(endpoints...)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	deadline, cancel := context.WithTimeout(ctx, joinDeadline)
	defer cancel()
	for {
		list, err := client.MemberList(deadline)
		if err == nil {
			for _, m := range list.Members {
				if m.Name != "" && slices.Contains(m.PeerURLs, i.peerURL()) {
					return nil
				}
			}
			err = errors.New("the member has no name yet")
		}
		select {
		case <-deadline.Done():
			return fmt.Errorf("etcd has not caught up with %v within %s: %w", endpoints, joinDeadline, err)
		case <-time.After(pollInterval / 2):
		}
	}
}

// add makes this server a member unless it is one already; returns the cluster as etcd's initial-cluster lists it.
func (i Instance) add(ctx context.Context, client *clientv3.Client, name string) ([]string, error) {
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	peers, known, err := i.place(list.Members, name)
	if err != nil || known {
		return peers, err
	}
	logx.Infof("Adding member %s=%s to etcd cluster %v", name, i.peerURL(), peers)
	if _, err := client.MemberAddAsLearner(ctx, []string{i.peerURL()}); err != nil {
		return nil, err
	}
	return append(peers, name+"="+i.peerURL()), nil
}

// place finds this server among the members. One that has not started yet has no name; with this server's address it
// is this server, from an interrupted join. Another member whose name begins with this Node's is a duplicate.
func (i Instance) place(members []*etcdserverpb.Member, name string) (peers []string, known bool, err error) {
	for _, m := range members {
		own := slices.Contains(m.PeerURLs, i.peerURL())
		who := m.Name
		if who == "" && own {
			who = name
		}
		known = known || (own && who == name)
		if len(m.PeerURLs) > 0 {
			peers = append(peers, who+"="+m.PeerURLs[0])
		}
		node := who
		if hyphen := strings.LastIndex(who, "-"); hyphen > 1 {
			node = who[:hyphen] // without the suffix that K3s adds
		}
		if who != name && node == i.NodeName {
			return nil, false, ErrDuplicateName
		}
	}
	return peers, known, nil
}

// Voter reports whether this server's etcd is up and a voter.
func (i Instance) Voter(ctx context.Context, client *clientv3.Client) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := client.Status(ctx, localEndpoint)
	if err != nil {
		return false, err
	}
	if status.Leader == 0 {
		return false, errors.New("etcd has no leader")
	}
	return !status.IsLearner, nil
}

// WaitVoter blocks until this server's etcd can serve: up, in a quorum, promoted.
func (i Instance) WaitVoter(ctx context.Context, client *clientv3.Client) error {
	said := time.Now()
	for {
		voter, err := i.Voter(ctx, client)
		if voter {
			return nil
		}
		if time.Since(said) > 15*time.Second {
			said = time.Now()
			if err == nil {
				err = errors.New("this server has not yet been promoted from learner to voting member")
			}
			logx.Infof("Waiting for etcd server to become available: %v", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// ManageLearners promotes learners that have caught up, as long as this server leads.
func (i Instance) ManageLearners(ctx context.Context, client *clientv3.Client) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(manageEvery):
		}
		if err := i.promote(ctx, client); err != nil && ctx.Err() == nil {
			logx.Debugf("Learners were not looked after: %v", err)
		}
	}
}

func (i Instance) promote(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := client.Status(ctx, localEndpoint)
	if err != nil || status.Leader != status.Header.MemberId {
		return err
	}
	list, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if !m.IsLearner || m.Name == "" {
			continue
		}
		if _, err := client.MemberPromote(ctx, m.ID); err != nil {
			logx.Debugf("Learner %s is not in sync yet: %v", m.Name, err)
			continue
		}
		logx.Infof("Promoted etcd member %s to voting member", m.Name)
	}
	return nil
}

// ClientURLs lists where the members of the cluster serve their clients.
func (i Instance) ClientURLs(ctx context.Context) ([]string, error) {
	client, err := i.Client()
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	var urls []string
	for _, m := range list.Members {
		if !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	return urls, nil
}
