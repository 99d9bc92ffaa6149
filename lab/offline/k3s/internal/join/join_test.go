package join

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"busbar/lab/k3s/internal/nodepassword"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

// supervisor serves a real handler with a real certificate; agents join with "a", servers with "s".
func supervisor(t *testing.T) (url string, cluster *pki.Cluster) {
	t.Helper()
	dir := t.TempDir()
	cluster, err := pki.Ensure(dir)
	if err != nil {
		t.Fatal(err)
	}
	serving := filepath.Join(dir, "tls", "serving-kube-apiserver")
	if err := cluster.Server.Ensure(serving, pki.Leaf{CommonName: "kube-apiserver", Hosts: []string{"127.0.0.1"}}); err != nil {
		t.Fatal(err)
	}
	state := Supervisor{
		Passwords: token.Passwords{Server: "s", Agent: "a"}, Cluster: ClusterConfig{ClusterCIDR: "10.42.0.0/16"},
		NodeName: "server-1", PasswordFile: filepath.Join(dir, "password"),
	}
	if err := state.Save(dir); err != nil {
		t.Fatal(err)
	}
	members := func(context.Context) ([]string, error) { return []string{"https://10.0.0.1:2379"}, nil }
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	handler, err := NewHandler(dir, members, memory{}, api)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(serving+".crt", serving+".key")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, cluster
}

// memory is a nodepassword.Store without a cluster.
type memory map[string]string

func (m memory) Get(_ context.Context, name string) (string, error) { return m[name], nil }

func (m memory) Create(_ context.Context, name, hash string) (bool, error) {
	m[name] = hash
	return true, nil
}

// notReady is the Store of a server whose apiserver does not serve yet.
type notReady struct{ memory }

func (notReady) Get(context.Context, string) (string, error) {
	return "", errors.New("connection refused")
}

func asNode(t *testing.T, url string, cluster *pki.Cluster) *Access {
	t.Helper()
	access, err := Connect(context.Background(), url, token.Secure(cluster.Server.Bundle, token.Node, "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	return access
}

// machine is a new machine that joins under a name.
func machine(t *testing.T, name string) Node {
	t.Helper()
	return Node{Name: name, IP: "10.0.0.21", PasswordFile: filepath.Join(t.TempDir(), "password")}
}

func TestAnotherMachineUnderAKnownNameIsRefusedWithK3ssMessage(t *testing.T) {
	ctx := context.Background()
	url, cluster := supervisor(t)
	access, first := asNode(t, url, cluster), machine(t, "worker-1")
	for range 2 {
		if err := access.Certificate(ctx, t.TempDir(), ClientKubelet, first); err != nil {
			t.Fatal(err)
		}
	}
	second := machine(t, "Worker-1")
	err := access.Certificate(ctx, t.TempDir(), ClientKubelet, second)
	want := "Node password rejected, duplicate hostname or contents of '" + second.PasswordFile +
		"' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := access.Certificate(ctx, t.TempDir(), ClientKubelet, machine(t, "worker-2")); err != nil {
		t.Errorf("a new name was refused: %v", err)
	}
}

func TestAServersOwnNodeIsCheckedAgainstItsFileBeforeTheAPIServerRuns(t *testing.T) {
	dir := t.TempDir()
	handler := &Handler{State: Supervisor{NodeName: "server-1", PasswordFile: filepath.Join(dir, "password")}, Nodes: notReady{}}
	own, err := nodepassword.Local(handler.State.PasswordFile)
	if err != nil {
		t.Fatal(err)
	}
	for node, row := range map[string]struct {
		password string
		want     int
	}{
		"server-1": {own, 0}, "server-2": {"x", http.StatusServiceUnavailable}, "server-3": {"", http.StatusBadRequest},
	} {
		var refused refusal
		if errors.As(handler.checkNode(context.Background(), node, row.password), &refused); refused.code != row.want {
			t.Errorf("%s: got %d, want %d", node, refused.code, row.want)
		}
	}
	var refused refusal
	err = handler.checkNode(context.Background(), "server-1", "other")
	if !errors.As(err, &refused) || refused.code != http.StatusForbidden {
		t.Errorf("another password for the server's own node: %v", err)
	}
}

func TestANodeGetsItsConfigAndCertificatesButNoKeysOfTheCluster(t *testing.T) {
	ctx := context.Background()
	url, cluster := supervisor(t)
	access := asNode(t, url, cluster)
	config, err := access.Config(ctx)
	if err != nil || config.ClusterCIDR != "10.42.0.0/16" {
		t.Errorf("got %+v, %v", config, err)
	}
	dir, node := t.TempDir(), machine(t, "Worker-1")
	for _, name := range []string{ServingKubelet, ClientKubelet} {
		if err := access.Certificate(ctx, dir, name, node); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(dir, "client-kubelet.crt"), filepath.Join(dir, "client-kubelet.key")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "serving-kubelet.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v, %v", info, err)
	}
	if _, err := access.Bootstrap(ctx); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a node was given the cluster's keys: %v", err)
	}
	if _, err := access.Members(ctx); err == nil {
		t.Error("a node was given the members of etcd")
	}
}

func TestAServerGetsWhatServersShare(t *testing.T) {
	ctx := context.Background()
	url, _ := supervisor(t)
	access, err := Connect(ctx, url, "s", true)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := access.Bootstrap(ctx)
	if err != nil || shared.AgentPassword != "a" {
		t.Fatalf("got %v", err)
	}
	there := t.TempDir()
	if err := pki.WriteShared(there, shared.Files); err != nil {
		t.Fatal(err)
	}
	joined, err := pki.Ensure(there)
	if err != nil || token.HashCA(joined.Server.Bundle) != token.HashCA(access.CA) {
		t.Errorf("the joined server has another CA: %v", err)
	}
}

func TestWrongTokensAreRefused(t *testing.T) {
	ctx := context.Background()
	url, _ := supervisor(t)
	for name, row := range map[string]struct {
		text     string
		asServer bool
	}{
		"wrong password":                {"wrong", false},
		"the agent token for a server":  {"a", true},
		"the server password as a node": {"s", false},
	} {
		access, err := Connect(ctx, url, row.text, row.asServer)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := access.Config(ctx); !errors.Is(err, ErrNotAuthorized) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := Connect(ctx, url, token.Secure([]byte("other"), token.Node, "a"), false); err == nil ||
		!strings.Contains(err.Error(), "token CA hash does not match") {
		t.Errorf("another cluster's token: %v", err)
	}
}

func TestPingAndCACertsAreOpenAndTheRestIsTheAPIServers(t *testing.T) {
	url, cluster := supervisor(t)
	anyone := &Access{BaseURL: url, client: client(&tls.Config{InsecureSkipVerify: true})}
	for path, want := range map[string]string{"/ping": "pong", "/cacerts": string(cluster.Server.Bundle)} {
		if got, err := anyone.do(context.Background(), http.MethodGet, path, nil, nil); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"/api", "/readyz", "/v1-k3"} {
		if _, err := anyone.do(context.Background(), http.MethodGet, path, nil, nil); err == nil || !strings.Contains(err.Error(), "418") {
			t.Errorf("%s did not reach the apiserver: %v", path, err)
		}
	}
}
