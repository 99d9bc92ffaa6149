package nodepassword

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"busbar/lab/k3s/internal/pki"
)

// File is where a machine keeps its password. K3s's uninstall scripts leave it, so that the machine may come back.
const File = "/etc/rancher/node/password"

// A server and the agent in it ask at the same time: with two passwords the server would refuse its own Node.
var making sync.Mutex

// Local returns the machine's password from path, which is made on the first call.
func Local(path string) (string, error) {
	making.Lock()
	defer making.Unlock()
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	password := hex.EncodeToString(random)
	return password, pki.WriteFile(path, []byte(password+"\n"), 0o600)
}

// SecretName is the name of a Node's Secret in kube-system.
func SecretName(node string) string { return strings.ToLower(node + ".node-password.k3s") }

// Store keeps the hashes; in the cluster it is the Secrets in kube-system.
type Store interface {
	// Get returns "" where there is none.
	Get(ctx context.Context, secret string) (hash string, err error)
	// Create returns false if another hash was stored meanwhile.
	Create(ctx context.Context, secret, hash string) (created bool, err error)
}

// ErrRefused is the answer to a machine whose password is not that of the Node.
var ErrRefused = errors.New("unable to verify password")

// Ensure stores the password of a new Node, and compares it with the stored one of a known Node.
func Ensure(ctx context.Context, store Store, node, password string) error {
	name := SecretName(node)
	stored, err := store.Get(ctx, name)
	if err != nil {
		return err
	}
	if stored == "" {
		hash, err := Hash(password)
		if err != nil {
			return err
		}
		created, err := store.Create(ctx, name, hash)
		if created || err != nil {
			return err
		}
		if stored, err = store.Get(ctx, name); err != nil {
			return err
		}
	}
	if err := matches(stored, password); err != nil {
		return fmt.Errorf("%w for node %s: %w", ErrRefused, node, err)
	}
	return nil
}
