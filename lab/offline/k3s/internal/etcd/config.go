// Package etcd configures the embedded etcd, joins it to a cluster as a learner and promotes learners.
package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

// Instance is one server's etcd.
type Instance struct {
	ServerDir string // <data-dir>/server
	NodeName  string
	NodeIP    string
	// ExposeMetrics opens the metrics to other hosts (etcd-expose-metrics).
	ExposeMetrics bool
	ExtraArgs     []string // etcd-arg: key=value
}

func (i Instance) dir() string     { return filepath.Join(i.ServerDir, "db", "etcd") }
func (i Instance) peerURL() string { return "https://" + i.NodeIP + ":2380" }
func (i Instance) tls(name string) string {
	return filepath.Join(i.ServerDir, "tls", "etcd", name)
}

// ConfigFile is where the etcd process reads its configuration.
func (i Instance) ConfigFile() string { return filepath.Join(i.dir(), "config") }

// Initialized reports whether this server already has data; then the data determine the cluster,
// and cluster-init and server are ignored.
func (i Instance) Initialized() bool {
	logs, err := filepath.Glob(filepath.Join(i.dir(), "member", "wal", "*.wal"))
	return err == nil && len(logs) > 0
}

// tombstone marks the data of a member that was removed from the cluster (K3s pkg/etcd/etcd.go).
func (i Instance) tombstone() string { return filepath.Join(i.dir(), "tombstone") }

// MarkRemoved marks this member as removed: etcd ends by itself for no other reason. K3s runs on without it until somebody
// restarts it.
func (i Instance) MarkRemoved() {
	if err := pki.WriteFile(i.tombstone(), nil, 0o600); err != nil {
		logx.Fatalf("Failed to write tombstone file to %s: %v", i.tombstone(), err)
	}
	logx.Infof("This node has been removed from the cluster - please restart k3s to rejoin the cluster")
}

// MoveRemovedAside moves the data of a removed member aside, so that it joins server as a new one. Without a server K3s
// refuses to start.
func (i Instance) MoveRemovedAside(server string) error {
	if _, err := os.Stat(i.tombstone()); err != nil {
		return nil
	}
	if server == "" {
		return errors.New("tombstone file has been detected but --server is empty: backup and delete ${datadir}/server/db " +
			"to create a new cluster, or set --server to rejoin")
	}
	logx.Infof("tombstone file has been detected, removing ${datadir}/server/db to rejoin the cluster")
	return os.Rename(i.dir(), fmt.Sprintf("%s-old-%d", i.dir(), time.Now().Unix()))
}

func (i Instance) nameFile() string { return filepath.Join(i.dir(), "name") }

// Name is this member's name, made once: <node>-<8 hex digits>.
func (i Instance) Name() (string, error) {
	path := i.nameFile()
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	suffix, err := token.Generate()
	if err != nil {
		return "", err
	}
	name := i.NodeName + "-" + suffix[:8]
	return name, pki.WriteFile(path, []byte(name), 0o600)
}

// EnsureCerts issues this server's etcd certificates.
func (i Instance) EnsureCerts(cluster *pki.Cluster) error {
	hosts := []string{"localhost", "127.0.0.1", i.NodeIP, i.NodeName}
	return errors.Join(
		cluster.Etcd.Ensure(i.tls("server-client"), pki.Leaf{CommonName: "etcd-server", Hosts: hosts, Peer: true}),
		cluster.EtcdPeer.Ensure(i.tls("peer-server-client"), pki.Leaf{CommonName: "etcd-peer", Hosts: hosts, Peer: true}),
		cluster.Etcd.Ensure(i.tls("client"), pki.Leaf{CommonName: "etcd-client"}),
	)
}

// WriteConfig writes etcd's configuration. initialCluster is only read by etcd on a first start;
// state is "new" or "existing".
func (i Instance) WriteConfig(initialCluster, state string) error {
	name, err := i.Name()
	if err != nil {
		return err
	}
	metrics := "http://127.0.0.1:2381"
	if i.ExposeMetrics {
		metrics += ",http://" + i.NodeIP + ":2381"
	}
	settings := map[string]any{
		"name":                        name,
		"data-dir":                    i.dir(),
		"listen-client-urls":          "https://127.0.0.1:2379,https://" + i.NodeIP + ":2379",
		"listen-client-http-urls":     "https://127.0.0.1:2382",
		"advertise-client-urls":       "https://" + i.NodeIP + ":2379",
		"listen-peer-urls":            "https://127.0.0.1:2380," + i.peerURL(),
		"initial-advertise-peer-urls": i.peerURL(),
		"listen-metrics-urls":         metrics,
		"initial-cluster":             initialCluster,
		"initial-cluster-state":       state,
		// K3s's own values: slow disks and busy hosts must not cause elections.
		"heartbeat-interval": 500,
		"election-timeout":   5000,
		"snapshot-count":     10000,
		"logger":             "zap",
		"log-level":          "warn",
		"log-outputs":        []string{"stderr"},
		"client-transport-security": map[string]any{
			"cert-file": i.tls("server-client.crt"), "key-file": i.tls("server-client.key"),
			"client-cert-auth": true, "trusted-ca-file": i.tls("server-ca.crt"),
		},
		"peer-transport-security": map[string]any{
			"cert-file": i.tls("peer-server-client.crt"), "key-file": i.tls("peer-server-client.key"),
			"client-cert-auth": true, "trusted-ca-file": i.tls("peer-ca.crt"),
		},
	}
	for _, arg := range i.ExtraArgs {
		key, value, found := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !found {
			return fmt.Errorf("etcd-arg: got %q, want key=value", arg)
		}
		var typed any
		if err := yaml.Unmarshal([]byte(value), &typed); err != nil {
			return fmt.Errorf("etcd-arg %s: %w", key, err)
		}
		settings[key] = typed
	}
	raw, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	return pki.WriteFile(i.ConfigFile(), raw, 0o600)
}
