package join

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/nodepassword"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

// Handler answers the supervisor's paths and passes all others on to the apiserver.
type Handler struct {
	ServerDir string
	State     Supervisor
	ServerCA  *pki.CA
	ClientCA  *pki.CA
	// Members lists the client URLs of the etcd members.
	Members func(context.Context) ([]string, error)
	// Nodes keeps the hashes of the nodes' passwords.
	Nodes nodepassword.Store
	Next  http.Handler
}

// NewHandler reads what it serves from <data-dir>/server.
func NewHandler(
	serverDir string, members func(context.Context) ([]string, error), nodes nodepassword.Store, next http.Handler,
) (*Handler, error) {
	state, err := Load(serverDir)
	if err != nil {
		return nil, err
	}
	serverCA, err := pki.LoadCA(filepath.Join(serverDir, "tls", "server-ca"))
	if err != nil {
		return nil, err
	}
	clientCA, err := pki.LoadCA(filepath.Join(serverDir, "tls", "client-ca"))
	if err != nil {
		return nil, err
	}
	return &Handler{
		ServerDir: serverDir, State: state, ServerCA: serverCA, ClientCA: clientCA, Members: members, Nodes: nodes, Next: next,
	}, nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case path == "/ping":
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "pong")
	case path == "/cacerts":
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(h.ServerCA.Bundle)
	case path == pathConfig:
		h.guarded(w, r, token.Node, func() (any, error) { return h.State.Cluster, nil })
	case path == pathBootstrap:
		h.guarded(w, r, token.Server, func() (any, error) {
			files, err := pki.Shared(h.ServerDir)
			return Bootstrap{Files: files, AgentPassword: h.State.Passwords.Agent}, err
		})
	case path == pathMembers:
		h.guarded(w, r, token.Server, func() (any, error) { return h.Members(r.Context()) })
	case strings.HasPrefix(path, pathCerts):
		h.guarded(w, r, token.Node, func() (any, error) { return h.sign(strings.TrimPrefix(path, pathCerts), r) })
	default:
		h.Next.ServeHTTP(w, r)
	}
}

// guarded answers as JSON to those whose token gives them the role.
func (h *Handler) guarded(w http.ResponseWriter, r *http.Request, need string, answer func() (any, error)) {
	user, password, _ := r.BasicAuth()
	role := h.State.Passwords.Role(user, password)
	if role == "" {
		logx.Warnf("%s %s from %s: not authorized", r.Method, r.URL.Path, r.RemoteAddr)
		status(w, http.StatusUnauthorized, "not authorized")
		return
	}
	if need == token.Server && role != token.Server {
		logx.Warnf("%s %s from %s: forbidden to a node's token", r.Method, r.URL.Path, r.RemoteAddr)
		status(w, http.StatusForbidden, "forbidden")
		return
	}
	body, err := answer()
	var refused refusal
	if errors.As(err, &refused) {
		status(w, refused.code, refused.text)
		return
	}
	if err != nil {
		logx.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		status(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // the client went away: nobody to tell
}

type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

func status(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure",
		"message": message, "reason": strings.ReplaceAll(http.StatusText(code), " ", ""), "code": code,
	})
}

// checkNode compares a node's password with the one that its name was used with first. That of this server's own node
// is compared with its file, because K3s asks for it before its apiserver runs (pkg/nodepassword/validate.go).
func (h *Handler) checkNode(ctx context.Context, node, password string) error {
	if password == "" {
		return refusal{http.StatusBadRequest, "node password not set"}
	}
	if node == h.State.NodeName {
		own, err := nodepassword.Local(h.State.PasswordFile)
		if err == nil && own != password {
			err = refusal{http.StatusForbidden, "unable to verify local node password"}
		}
		return err
	}
	err := nodepassword.Ensure(ctx, h.Nodes, node, password)
	if errors.Is(err, nodepassword.ErrRefused) {
		return refusal{http.StatusForbidden, err.Error()}
	}
	if err != nil {
		logx.Warnf("The password of node %s cannot be checked yet: %v", node, err)
		return refusal{http.StatusServiceUnavailable, "runtime core not ready"}
	}
	return nil
}

// sign issues one of a node's certificates for the key in the CSR; the server chooses the subject.
func (h *Handler) sign(name string, r *http.Request) (any, error) {
	node, ip := strings.ToLower(r.Header.Get(headerNodeName)), r.Header.Get(headerNodeIP)
	if r.Method != http.MethodPost || node == "" {
		return nil, refusal{http.StatusBadRequest, "a POST with a node name is needed"}
	}
	if name == ServingKubelet || name == ClientKubelet {
		if err := h.checkNode(r.Context(), node, r.Header.Get(headerNodePassword)); err != nil {
			return nil, err
		}
	}
	ca, leaf := h.ClientCA, pki.Leaf{}
	switch name {
	case ServingKubelet:
		ca, leaf = h.ServerCA, pki.Leaf{CommonName: node, Hosts: []string{node, "localhost", "127.0.0.1", ip}}
	case ClientKubelet:
		leaf = pki.Leaf{CommonName: "system:node:" + node, Groups: []string{"system:nodes"}}
	case ClientProxy:
		leaf = pki.Leaf{CommonName: "system:kube-proxy"}
	case ClientNode:
		leaf = pki.Leaf{CommonName: "system:k3s-controller"}
	default:
		return nil, refusal{http.StatusNotFound, fmt.Sprintf("no certificate is called %q", name)}
	}
	raw, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, refusal{http.StatusBadRequest, "no PEM certificate request"}
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, refusal{http.StatusBadRequest, err.Error()}
	}
	if err := request.CheckSignature(); err != nil {
		return nil, refusal{http.StatusBadRequest, err.Error()}
	}
	chain, err := ca.Sign(leaf, request.PublicKey)
	return map[string][]byte{"chain": chain, "clientCA": h.ClientCA.Bundle}, err
}
