package pki

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Cluster holds the authorities that all servers share.
type Cluster struct {
	Dir                                           string // <data-dir>/server/tls
	Server, Client, RequestHeader, Etcd, EtcdPeer *CA
}

// sharedFiles are sent to a joining server; relative to <data-dir>/server.
var sharedFiles = []string{
	"tls/server-ca.crt", "tls/server-ca.key", "tls/client-ca.crt", "tls/client-ca.key",
	"tls/request-header-ca.crt", "tls/request-header-ca.key",
	"tls/etcd/server-ca.crt", "tls/etcd/server-ca.key", "tls/etcd/peer-ca.crt", "tls/etcd/peer-ca.key",
	"tls/service.key", "cred/encryption-config.json",
}

// EncryptionConfig is the apiserver's encryption-provider-config inside <data-dir>/server.
const EncryptionConfig = "cred/encryption-config.json"

// Ensure loads or makes the authorities and the service-account key under serverDir.
func Ensure(serverDir string) (*Cluster, error) {
	c := &Cluster{Dir: filepath.Join(serverDir, "tls")}
	for _, item := range []struct {
		ca   **CA
		path string
		name string
	}{
		{&c.Server, "server-ca", "k3s-server-ca"},
		{&c.Client, "client-ca", "k3s-client-ca"},
		{&c.RequestHeader, "request-header-ca", "k3s-request-header-ca"},
		{&c.Etcd, "etcd/server-ca", "etcd-server-ca"},
		{&c.EtcdPeer, "etcd/peer-ca", "etcd-peer-ca"},
	} {
		ca, err := EnsureCA(filepath.Join(c.Dir, item.path), item.name)
		if err != nil {
			return nil, err
		}
		*item.ca = ca
	}
	_, err := EnsureKey(filepath.Join(c.Dir, "service.key"))
	return c, err
}

// Shared returns the files a joining server needs, by name relative to serverDir.
func Shared(serverDir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range sharedFiles {
		content, err := os.ReadFile(filepath.Join(serverDir, name))
		if errors.Is(err, os.ErrNotExist) && name == EncryptionConfig {
			continue // only with secrets-encryption
		}
		if err != nil {
			return nil, err
		}
		files[name] = content
	}
	return files, nil
}

// WriteShared puts the files of another server in place; names it does not know are refused.
func WriteShared(serverDir string, files map[string][]byte) error {
	known := map[string]bool{}
	for _, name := range sharedFiles {
		known[name] = true
	}
	for name, content := range files {
		if !known[name] {
			return fmt.Errorf("bootstrap data has an unknown file %q", name)
		}
		if err := WriteFile(filepath.Join(serverDir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// EnsureEncryption writes the EncryptionConfiguration with a fresh AES-CBC key unless one is there.
func EnsureEncryption(serverDir string) error {
	path := filepath.Join(serverDir, EncryptionConfig)
	if _, err := os.Stat(path); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	type object = map[string]any
	raw, err := json.Marshal(object{
		"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
		"resources": []object{{
			"resources": []string{"secrets"},
			"providers": []object{
				{"aescbc": object{"keys": []object{{"name": "aescbckey", "secret": base64.StdEncoding.EncodeToString(key)}}}},
				{"identity": object{}},
			},
		}},
	})
	if err != nil {
		return err
	}
	return WriteFile(path, raw, 0o600)
}
