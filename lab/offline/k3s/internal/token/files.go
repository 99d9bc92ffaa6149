package token

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Passwords are what a cluster's tokens carry. Without an agent token of its own, nodes join with
// the server's.
type Passwords struct {
	Server string `json:"server"`
	Agent  string `json:"agent"`
}

// Role is what credentials permit: "server" (which includes joining nodes), "node", or "".
func (p Passwords) Role(user, password string) string {
	switch {
	case p.Server != "" && Token{User: Server, Password: p.Server}.Matches(user, password):
		return Server
	case p.Agent != "" && Token{User: Node, Password: p.Agent}.Matches(user, password):
		return Node
	}
	return ""
}

// ReadServerFile returns the password kept in a server's data folder, or "" on a first start.
func ReadServerFile(serverDir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(serverDir, "token"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	kept, err := Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(serverDir, "token"), err)
	}
	return kept.Password, nil
}

// WriteFiles writes server/{token,agent-token} (0600) and the link node-token, as K3s does.
func WriteFiles(serverDir string, caBundle []byte, p Passwords) error {
	if err := write(filepath.Join(serverDir, "token"), Secure(caBundle, Server, p.Server)); err != nil {
		return err
	}
	if err := link(filepath.Join(serverDir, "token"), filepath.Join(serverDir, "node-token")); err != nil {
		return err
	}
	agent := filepath.Join(serverDir, "agent-token")
	if p.Agent == p.Server {
		return link(filepath.Join(serverDir, "token"), agent)
	}
	// A link left from a start without an agent token would send the write into server/token.
	if err := os.Remove(agent); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return write(agent, Secure(caBundle, Node, p.Agent))
}

func write(path, text string) error {
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		return err
	}
	return os.Chmod(path, 0o600)
}

func link(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}
