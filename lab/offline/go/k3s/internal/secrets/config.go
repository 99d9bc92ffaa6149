// Package secrets rotates the key that Secrets are encrypted with in etcd, in K3s's three stages: prepare, rotate,
// reencrypt (pkg/server/handlers/secrets-encrypt.go, pkg/secretsencrypt).
package secrets

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"busbar/lab/k3s/internal/pki"
)

// Annotation is where each server's Node says its stage and the hash of its configuration.
const Annotation = "k3s.io/encryption-config-hash"

// The stages of a rotation.
const (
	Start    = "start"
	Prepare  = "prepare"
	Rotate   = "rotate"
	Active   = "reencrypt_active"
	Finished = "reencrypt_finished"
)

// Key is one AES-CBC key.
type Key struct {
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

type provider struct {
	AESCBC   *keys     `json:"aescbc,omitempty"`
	Identity *struct{} `json:"identity,omitempty"`
}

type keys struct {
	Keys []Key `json:"keys"`
}

type document struct {
	Kind       string     `json:"kind"`
	APIVersion string     `json:"apiVersion"`
	Resources  []resource `json:"resources"`
}

type resource struct {
	Resources []string   `json:"resources"`
	Providers []provider `json:"providers"`
}

// Keys returns the keys of this server, the one that encrypts first.
func Keys(serverDir string) ([]Key, error) {
	raw, err := os.ReadFile(filepath.Join(serverDir, pki.EncryptionConfig))
	if err != nil {
		return nil, err
	}
	var config document
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, err
	}
	if len(config.Resources) != 1 || len(config.Resources[0].Providers) == 0 || config.Resources[0].Providers[0].AESCBC == nil {
		return nil, errors.New("the encryption configuration does not begin with aescbc")
	}
	return config.Resources[0].Providers[0].AESCBC.Keys, nil
}

// NewKey makes a key with K3s's kind of name.
func NewKey(now time.Time) (Key, error) {
	raw := make([]byte, 32)
	_, err := rand.Read(raw)
	return Key{"aescbckey-" + now.Format(time.RFC3339), base64.StdEncoding.EncodeToString(raw)}, err
}

func writeKeys(serverDir string, list []Key) error {
	raw, err := json.Marshal(document{
		"EncryptionConfiguration", "apiserver.config.k8s.io/v1",
		[]resource{{[]string{"secrets"}, []provider{{AESCBC: &keys{list}}, {Identity: &struct{}{}}}}},
	})
	if err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(serverDir, pki.EncryptionConfig), raw, 0o600)
}

// ReadState returns STAGE-HASH of this server's last stage.
func ReadState(serverDir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(serverDir, pki.EncryptionState))
	return string(raw), err
}

// EnsureState writes the first state unless there is one.
func EnsureState(serverDir string) error {
	if _, err := ReadState(serverDir); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, err := writeState(serverDir, Start)
	return err
}

// Request has the running server write all Secrets anew, and returns the state to show.
func Request(serverDir string) (string, error) {
	if err := pki.WriteFile(request(serverDir), nil, 0o600); err != nil {
		return "", err
	}
	return Shown(serverDir)
}

// IsRequested says whether Request was called, and Forget not since.
func IsRequested(serverDir string) bool {
	_, err := os.Stat(request(serverDir))
	return err == nil
}

// Forget ends a request.
func Forget(serverDir string) error {
	if err := os.Remove(request(serverDir)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Shown is STAGE-HASH for the annotation: that of the file, or Active while a request is open.
func Shown(serverDir string) (string, error) {
	if IsRequested(serverDir) {
		return stateOf(serverDir, Active)
	}
	return ReadState(serverDir)
}

func request(serverDir string) string {
	return filepath.Join(serverDir, "cred", "reencrypt-request")
}

func writeState(serverDir, stage string) (string, error) {
	state, err := stateOf(serverDir, stage)
	if err != nil {
		return "", err
	}
	return state, pki.WriteFile(filepath.Join(serverDir, pki.EncryptionState), []byte(state), 0o600)
}

// stateOf is STAGE-HASH for the configuration as it is.
func stateOf(serverDir, stage string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(serverDir, pki.EncryptionConfig))
	sum := sha256.Sum256(raw)
	return stage + "-" + hex.EncodeToString(sum[:]), err
}

// Advance does the part of a stage that changes this server's files. The old key is dropped by Finished only, when all
// Secrets are written with the new one.
func Advance(serverDir, stage string, now time.Time) (state string, err error) {
	list, err := Keys(serverDir)
	if err != nil {
		return "", err
	}
	switch stage {
	case Prepare:
		key, err := NewKey(now)
		if err != nil {
			return "", err
		}
		list = append(list, key)
	case Rotate:
		last := len(list) - 1
		list = slices.Concat(list[last:], list[:last])
	case Finished:
		list = list[:len(list)-1]
	default:
		return "", fmt.Errorf("unknown stage %s requested", stage)
	}
	if len(list) == 0 {
		return "", errors.New("no key would be left")
	}
	if err := writeKeys(serverDir, list); err != nil {
		return "", err
	}
	return writeState(serverDir, stage)
}

// Before are the stages from which a stage may begin.
var Before = map[string][]string{Prepare: {Start, Finished}, Rotate: {Prepare}, Active: {Rotate}}

// Check refuses a stage unless all servers have the same state, and it is one from which the stage may begin. `states`
// is name -> STAGE-HASH of every server.
func Check(serverDir, stage, node string, states map[string]string) error {
	if err := Match(states); err != nil {
		return err
	}
	old, _, _ := strings.Cut(states[node], "-")
	if !slices.Contains(Before[stage], old) {
		return fmt.Errorf("incorrect stage: %s found on node %s", old, node)
	}
	if now, err := stateOf(serverDir, old); err != nil || now != states[node] {
		return errors.Join(err, fmt.Errorf("invalid hash: %s found on node %s", states[node], node))
	}
	return nil
}

// Match refuses states that are not the same on all servers.
func Match(states map[string]string) error {
	names := make([]string, 0, len(states))
	for name := range states {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if states[name] != states[names[0]] {
			return fmt.Errorf("hash does not match between %s and %s", names[0], name)
		}
	}
	return nil
}
