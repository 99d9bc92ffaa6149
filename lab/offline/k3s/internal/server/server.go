// Package server runs a control plane: etcd, kube-apiserver with the supervisor, controller-manager
// and scheduler, and the agent of its own host.
package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"busbar/lab/k3s/internal/agent"
	"busbar/lab/k3s/internal/components"
	"busbar/lab/k3s/internal/config"
	"busbar/lab/k3s/internal/etcd"
	"busbar/lab/k3s/internal/join"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/manifests"
	"busbar/lab/k3s/internal/nodepassword"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/proc"
	"busbar/lab/k3s/internal/token"
)

// Server is one control-plane host.
type Server struct {
	cfg       *config.Config
	nodeIP    string
	passwords token.Passwords
	etcd      etcd.Instance
	pki       *pki.Cluster
	group     *proc.Group
	admin     *rest.Config
	// joined lists the etcd members that this start has joined; empty where data were on disk.
	joined []string
}

func (s *Server) dir(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.DataDir, "server"}, parts...)...)
}

// localURL is where this host's own components reach its apiserver.
func (s *Server) localURL() string { return fmt.Sprintf("https://127.0.0.1:%d", s.cfg.Port) }

// Run is `k3s server`: it returns when its context ends, or with a fatal error.
func Run(ctx context.Context, c *config.Config) error {
	ip, err := agent.NodeIP(c)
	if err != nil {
		return err
	}
	s := &Server{cfg: c, nodeIP: ip}
	s.etcd = etcd.Instance{
		ServerDir: s.dir(), NodeName: c.NodeName, NodeIP: ip,
		ExposeMetrics: c.EtcdMetricsOpen, ExtraArgs: c.EtcdArgs,
	}
	if err := s.prepare(ctx); err != nil {
		return fmt.Errorf("preparing server: %w", err)
	}
	s.group = proc.NewGroup(ctx)
	s.group.Go(s.start)
	return s.group.Wait()
}

// prepare makes or fetches what the control plane starts with; nothing runs yet.
func (s *Server) prepare(ctx context.Context) error {
	if err := os.MkdirAll(s.dir(), 0o700); err != nil {
		return err
	}
	if err := s.etcd.MoveRemovedAside(s.cfg.ServerURL); err != nil {
		return err
	}
	if err := s.bootstrap(ctx); err != nil {
		return fmt.Errorf("failed to bootstrap cluster data: %w", err)
	}
	if err := s.certificates(); err != nil {
		return err
	}
	if err := token.WriteFiles(s.dir(), s.pki.Server.Bundle, s.passwords); err != nil {
		return err
	}
	supervisor := join.Supervisor{
		Passwords: s.passwords, Cluster: s.clusterConfig(),
		NodeName: s.cfg.NodeName, PasswordFile: nodepassword.File,
	}
	if err := supervisor.Save(s.dir()); err != nil {
		return err
	}
	registry := s.cfg.SystemRegistry
	if registry != "" {
		registry += "/"
	}
	return manifests.WritePackaged(s.dir(), manifests.Values{
		ClusterDNS: s.cfg.ClusterDNS, ClusterDomain: s.cfg.ClusterDomain, Registry: registry,
	}, s.cfg.Disable)
}

func (s *Server) clusterConfig() join.ClusterConfig {
	return join.ClusterConfig{
		ClusterCIDR: s.cfg.ClusterCIDR, ServiceCIDR: s.cfg.ServiceCIDR, ClusterDNS: s.cfg.ClusterDNS,
		ClusterDomain: s.cfg.ClusterDomain, FlannelBackend: s.cfg.FlannelBackend,
		DisableProxy: s.cfg.DisableProxy, Critical: s.cfg.Critical(),
	}
}

// start starts the parts in the order of their dependencies.
func (s *Server) start(ctx context.Context) error {
	node := &agent.Node{
		Config: s.cfg, NodeIP: s.nodeIP, URL: s.localURL(), Group: s.group,
		Token: token.Secure(s.pki.Server.Bundle, token.Node, s.passwords.Agent),
	}
	var runtimeReady <-chan struct{}
	if !s.cfg.DisableAgent {
		runtimeReady = node.StartRuntime()
	}
	client, err := s.startEtcd(ctx)
	if err != nil {
		return err
	}
	s.group.Start(proc.Child{
		Name: "kube-apiserver", Args: append([]string{"kube-apiserver"}, s.apiServerArgs()...),
		Env: []string{components.ServerDirEnv + "=" + s.dir()}, Grace: 15 * time.Second,
	})
	if err := s.waitAPIServer(ctx); err != nil {
		return err
	}
	logx.Infof("Kube API server is now running")
	s.group.Start(proc.Child{
		Name: "kube-controller-manager", Args: append([]string{"kube-controller-manager"}, s.controllerArgs()...),
		Grace: 5 * time.Second, Fatal: true,
	})
	if !s.cfg.DisableScheduler {
		s.group.Start(proc.Child{
			Name: "kube-scheduler", Args: append([]string{"kube-scheduler"}, s.schedulerArgs()...),
			Grace: 5 * time.Second, Fatal: true,
		})
	}
	s.background(client)
	logx.Infof("k3s is up and running")
	// As K3s: images are imported and the kubelet starts after this.
	proc.Notify("READY=1")
	if s.cfg.DisableAgent {
		return nil
	}
	return node.Join(ctx, runtimeReady)
}

func (s *Server) startEtcd(ctx context.Context) (*clientv3.Client, error) {
	child := s.etcdChild()
	if len(s.joined) > 0 {
		if err := s.catchUp(ctx, child); err != nil {
			return nil, err
		}
	}
	s.group.Start(child)
	client, err := s.etcd.Client()
	if err != nil {
		return nil, err
	}
	context.AfterFunc(s.group.Context(), func() { _ = client.Close() })
	s.group.Go(func(ctx context.Context) error { return s.etcd.ManageLearners(ctx, client) })
	return client, s.etcd.WaitVoter(ctx, client)
}

func (s *Server) etcdChild() proc.Child {
	return proc.Child{
		Name: "etcd", Args: []string{"etcd", "--config-file=" + s.etcd.ConfigFile()}, Grace: 10 * time.Second,
		Ended: s.etcd.MarkRemoved,
	}
}

// catchUp lets a new member fetch the cluster's data and ends it again. etcd does not serve before
// its name is published; on a first start the answer to that proposal comes with the leader's
// snapshot, unnoticed by the waiting member, which continues only after a timeout of 15 s. A second start
// publishes at once.
func (s *Server) catchUp(ctx context.Context, child proc.Child) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- child.Run(ctx) }()
	known := make(chan error, 1)
	go func() { known <- s.etcd.WaitKnown(ctx, s.joined) }()
	select {
	case err := <-ended:
		return err
	case err := <-known:
		cancel()
		return errors.Join(err, <-ended)
	}
}

// background is the recurring work of a running server.
func (s *Server) background(client *clientv3.Client) {
	s.group.Go(func(ctx context.Context) error { return manifests.Deploy(ctx, s.admin, s.dir("manifests")) })
	if !s.cfg.DisableAgent {
		s.group.Go(func(ctx context.Context) error { return s.followNode(ctx, client) })
	}
	s.group.Go(func(ctx context.Context) error { return s.followMembers(ctx, client) })
	s.group.Go(s.followPasswords)
}

var errNoToken = errors.New("K3S_TOKEN is required to join a cluster")
