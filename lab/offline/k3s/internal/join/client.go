package join

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/nodepassword"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

const requestTimeout = 10 * time.Second

// Access is a verified way to a server's supervisor.
type Access struct {
	BaseURL string
	CA      []byte
	Token   token.Token
	client  *http.Client
}

// Connect fetches the cluster CA from a server and checks it against the token. A joining server
// authenticates as the user "server" whatever its token names (asServer); a node with a short token
// authenticates as "node".
func Connect(ctx context.Context, serverURL, text string, asServer bool) (*Access, error) {
	parsed, err := token.Parse(text)
	if err != nil {
		return nil, err
	}
	if asServer {
		parsed.User = token.Server
	} else if parsed.User == "" {
		parsed.User = token.Node
	}
	// Nothing is verified yet: this first request only fetches what the hash in the token pins.
	blind := &Access{BaseURL: serverURL, client: client(&tls.Config{InsecureSkipVerify: true})}
	bundle, err := blind.do(ctx, http.MethodGet, "/cacerts", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to get CA certs: %w", err)
	}
	if err := parsed.VerifyCA(bundle); err != nil {
		return nil, err
	}
	if parsed.CAHash == "" {
		logx.Warnf("Cluster CA certificate is not trusted by the host CA bundle, but the token does not include a CA hash. " +
			"Use the full token from the server's node-token file to enable Cluster CA validation.")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	access := &Access{BaseURL: serverURL, CA: bundle, Token: parsed, client: client(&tls.Config{RootCAs: pool})}
	if _, err := access.do(ctx, http.MethodGet, "/ping", nil, nil); err != nil {
		return nil, fmt.Errorf("CA cert validation failed: %w", err)
	}
	return access, nil
}

func client(config *tls.Config) *http.Client {
	return &http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
}

func (a *Access) do(ctx context.Context, method, path string, header map[string]string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if a.Token.User != "" {
		request.SetBasicAuth(a.Token.User, a.Token.Password)
	}
	for key, value := range header {
		request.Header.Set(key, value)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("%s%s: %w", a.BaseURL, path, ErrNotAuthorized)
	}
	if response.StatusCode != http.StatusOK {
		return nil, answer{response.StatusCode, fmt.Sprintf("%s%s: %s: %s", a.BaseURL, path, response.Status, bytes.TrimSpace(content))}
	}
	return content, nil
}

// answer is a refusal by the server.
type answer struct {
	code int
	text string
}

func (a answer) Error() string { return a.text }

// ErrNotAuthorized is the server's answer to an unknown token.
var ErrNotAuthorized = errors.New("401 Unauthorized: not authorized")

// Config asks for the cluster's configuration.
func (a *Access) Config(ctx context.Context) (ClusterConfig, error) {
	return fetch[ClusterConfig](ctx, a, pathConfig)
}

// Bootstrap asks for what servers share; nodes are refused.
func (a *Access) Bootstrap(ctx context.Context) (Bootstrap, error) {
	return fetch[Bootstrap](ctx, a, pathBootstrap)
}

// Members asks for the client URLs of the etcd members; nodes are refused.
func (a *Access) Members(ctx context.Context) ([]string, error) {
	return fetch[[]string](ctx, a, pathMembers)
}

func fetch[T any](ctx context.Context, a *Access, path string) (T, error) {
	var body T
	raw, err := a.do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return body, err
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return body, fmt.Errorf("%s%s: %w", a.BaseURL, path, err)
	}
	return body, nil
}

// Node is how a machine introduces itself.
type Node struct {
	Name, IP     string
	PasswordFile string
}

// Certificate has the server sign a node's key and writes dir/name (.crt beside .key); the key
// never leaves the node. Beside the client certificates it keeps the cluster's client CA.
func (a *Access) Certificate(ctx context.Context, dir, name string, node Node) error {
	password, err := nodepassword.Local(node.PasswordFile)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name[:len(name)-len(".crt")])
	key, err := pki.EnsureKey(path + ".key")
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	raw, err := a.do(ctx, http.MethodPost, pathCerts+name,
		map[string]string{headerNodeName: node.Name, headerNodePassword: password, headerNodeIP: node.IP},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	var refused answer
	if errors.As(err, &refused) && refused.code == http.StatusForbidden {
		// K3s's own message (pkg/agent/config/config.go), by which users and scripts recognise it.
		return fmt.Errorf("Node password rejected, duplicate hostname or contents of '%s' may not match server node-passwd entry, "+
			"try enabling a unique node name with the --with-node-id flag", node.PasswordFile)
	}
	if err != nil {
		return err
	}
	var signed struct {
		Chain    []byte `json:"chain"`
		ClientCA []byte `json:"clientCA"`
	}
	if err := json.Unmarshal(raw, &signed); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := pki.WriteFile(path+".crt", signed.Chain, 0o644); err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(dir, "client-ca.crt"), signed.ClientCA, 0o644)
}
