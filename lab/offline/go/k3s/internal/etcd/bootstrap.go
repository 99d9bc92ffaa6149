package etcd

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

const bootstrapPrefix = "/bootstrap/"

// A file that differs from etcd's is newer only if it is so by this time (pkg/cluster/bootstrap.go `systemTimeSkew`).
const clockSkew = 3 * time.Second

// ErrOtherToken is K3s's message for data that were made with another token (pkg/cluster/storage.go).
var ErrOtherToken = errors.New("bootstrap data already found and encrypted with different token")

// bootstrapFiles are what this replacement keeps in etcd, relative to <data-dir>/server. K3s has the keys of the
// authorities there as well.
var bootstrapFiles = []string{token.PasswdFile, pki.EncryptionConfig, pki.EncryptionState}

type bootstrapFile struct {
	Timestamp time.Time `json:"timestamp"`
	Content   []byte    `json:"content"`
}

// Reconcile compares this server's files with those in etcd, as K3s does at every start: a file that is newer in etcd, or
// missing here, is written; one that is newer here ends the start, except in a reset. The data of another token are refused.
func (i Instance) Reconcile(ctx context.Context, client *clientv3.Client, password string, reset bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	files, err := i.bootstrap(ctx, client, password)
	if err != nil || files == nil {
		return err
	}
	var newer []string
	update := reset
	for name, stored := range files {
		path := filepath.Join(i.ServerDir, name)
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			update = true
			continue
		}
		if err != nil {
			return err
		}
		if bytes.Equal(content, stored.Content) {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		update = true
		if info.ModTime().Sub(stored.Timestamp) >= clockSkew {
			newer = append(newer, path)
		} else {
			logx.Warnf("%s will be updated from the datastore.", path)
		}
	}
	if len(newer) > 0 && !reset {
		sort.Strings(newer)
		return fmt.Errorf("%s newer than datastore and could cause a cluster outage. "+ //nolint:staticcheck // K3s's text
			"Remove the file(s) from disk and restart to be recreated from datastore.", strings.Join(newer, ", "))
	}
	if !update {
		return nil
	}
	logx.Warnf("Updating bootstrap data on disk from datastore")
	for name, stored := range files {
		if err := pki.WriteFile(filepath.Join(i.ServerDir, name), stored.Content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// bootstrap reads the files in etcd; nil where there are none yet.
func (i Instance) bootstrap(ctx context.Context, client *clientv3.Client, password string) (map[string]bootstrapFile, error) {
	found, err := client.Get(ctx, bootstrapPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, pair := range found.Kvs {
		if string(pair.Key) == bootstrapKey(password) {
			var files map[string]bootstrapFile
			raw, err := open(password, pair.Value)
			if err != nil {
				return nil, err
			}
			return files, json.Unmarshal(raw, &files)
		}
	}
	if len(found.Kvs) > 0 {
		return nil, ErrOtherToken
	}
	return nil, nil
}

// Save writes this server's files to etcd, encrypted with the token.
func (i Instance) Save(ctx context.Context, client *clientv3.Client, password string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := i.bootstrap(ctx, client, password); err != nil {
		return err
	}
	files := map[string]bootstrapFile{}
	for _, name := range bootstrapFiles {
		path := filepath.Join(i.ServerDir, name)
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // without secrets-encryption
		}
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		files[name] = bootstrapFile{info.ModTime(), content}
	}
	raw, err := json.Marshal(files)
	if err != nil {
		return err
	}
	sealed, err := seal(password, raw)
	if err != nil {
		return err
	}
	_, err = client.Put(ctx, bootstrapKey(password), string(sealed))
	return err
}

// SaveFirst does the same where there are no data in etcd yet.
func (i Instance) SaveFirst(ctx context.Context, client *clientv3.Client, password string) error {
	found, err := client.Get(ctx, bootstrapPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(found.Kvs) > 0 {
		return err
	}
	return i.Save(ctx, client, password)
}

// RotateToken gives the cluster another token (pkg/server/handlers/token.go `tokenRotate`): the files of this server
// first, then the data in etcd. With the token that it has already, this only saves the files.
func (i Instance) RotateToken(ctx context.Context, caBundle []byte, new string) error {
	passwords, err := token.ReadPasswd(i.ServerDir)
	if err != nil {
		return err
	}
	old := passwords.Server
	if old == "" {
		return errors.New("server token not found")
	}
	if passwords.Agent == old {
		passwords.Agent = new
	}
	passwords.Server = new
	if err := errors.Join(
		token.WritePasswd(i.ServerDir, passwords), token.WriteServerFile(i.ServerDir, caBundle, new),
	); err != nil {
		return err
	}
	client, err := i.Client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := i.moveBootstrap(ctx, client, old, new); err != nil {
		return err
	}
	return i.Save(ctx, client, new)
}

// moveBootstrap encrypts the data of the old token anew, and deletes them under the old token's key.
func (i Instance) moveBootstrap(ctx context.Context, client *clientv3.Client, old, new string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := client.Get(ctx, bootstrapKey(old))
	if err != nil || len(found.Kvs) == 0 || old == new {
		return err
	}
	raw, err := open(old, found.Kvs[0].Value)
	if err != nil {
		return err
	}
	sealed, err := seal(new, raw)
	if err != nil {
		return err
	}
	_, err = client.Txn(ctx).Then(
		clientv3.OpPut(bootstrapKey(new), string(sealed)), clientv3.OpDelete(bootstrapKey(old)),
	).Commit()
	return err
}

// bootstrapKey is where K3s keeps the data of a token (pkg/cluster/encrypt.go `storageKey`).
func bootstrapKey(password string) string {
	sum := sha256.Sum256([]byte(password))
	return bootstrapPrefix + hex.EncodeToString(sum[:])[:12]
}

func sealer(password string) (cipher.AEAD, error) {
	key := sha256.Sum256([]byte("bootstrap " + password))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func seal(password string, plain []byte) ([]byte, error) {
	gcm, err := sealer(password)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, gcm.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return gcm.Seal(nonce, nonce, plain, nil), nil
}

func open(password string, sealed []byte) ([]byte, error) {
	gcm, err := sealer(password)
	if err != nil {
		return nil, err
	}
	if len(sealed) < gcm.NonceSize() {
		return nil, errors.New("bootstrap data in etcd are cut off")
	}
	return gcm.Open(nil, sealed[:gcm.NonceSize()], sealed[gcm.NonceSize():], nil)
}
