// Package join is the join protocol: the supervisor's side on port 6443 and the client's side.
// Every path but /ping and /cacerts requires a token.
package join

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

// ClusterConfig is what a node must know of the cluster, and what servers must agree on.
type ClusterConfig struct {
	ClusterCIDR    string            `json:"clusterCIDR"`
	ServiceCIDR    string            `json:"serviceCIDR"`
	ClusterDNS     string            `json:"clusterDNS"`
	ClusterDomain  string            `json:"clusterDomain"`
	FlannelBackend string            `json:"flannelBackend"`
	DisableProxy   bool              `json:"disableProxy"`
	Critical       map[string]string `json:"critical"`
}

// Supervisor is what the apiserver process needs to answer joining hosts. The main process
// leaves it in a file of mode 0600, because it carries the passwords.
type Supervisor struct {
	Passwords token.Passwords `json:"passwords"`
	Cluster   ClusterConfig   `json:"cluster"`
	// NodeName is this server's own Node, whose password is checked against PasswordFile.
	NodeName     string `json:"nodeName"`
	PasswordFile string `json:"passwordFile"`
}

func supervisorPath(serverDir string) string {
	return filepath.Join(serverDir, "cred", "supervisor.json")
}

// Save leaves the supervisor's data for the apiserver process.
func (s Supervisor) Save(serverDir string) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return pki.WriteFile(supervisorPath(serverDir), raw, 0o600)
}

// Load reads what Save left.
func Load(serverDir string) (Supervisor, error) {
	var s Supervisor
	raw, err := os.ReadFile(supervisorPath(serverDir))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%s: %w", supervisorPath(serverDir), err)
	}
	return s, nil
}

// Bootstrap is the body of /v1-k3s/server-bootstrap: the shared files of a cluster and the
// password that its agents join with.
type Bootstrap struct {
	Files         map[string][]byte `json:"files"`
	AgentPassword string            `json:"agentPassword"`
}

// The paths of the supervisor, named as K3s names them where it has the same thing.
const (
	pathConfig    = "/v1-k3s/config"
	pathBootstrap = "/v1-k3s/server-bootstrap"
	pathCerts     = "/v1-k3s/"
	pathMembers   = "/db/info"
)

// The certificates a node may ask for.
const (
	ServingKubelet = "serving-kubelet.crt"
	ClientKubelet  = "client-kubelet.crt"
	ClientProxy    = "client-kube-proxy.crt"
	ClientNode     = "client-k3s-controller.crt"
)

const (
	headerNodeName     = "k3s-Node-Name"
	headerNodePassword = "k3s-Node-Password"
	headerNodeIP       = "k3s-Node-IP"
)
