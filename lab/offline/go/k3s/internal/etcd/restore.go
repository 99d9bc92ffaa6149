package etcd

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

// ResetFlag is the file by which K3s knows that a reset is done (pkg/etcd/etcd.go); the next start removes it.
func (i Instance) ResetFlag() string { return filepath.Join(i.ServerDir, "db", "reset-flag") }

// Restore replaces this server's data by a snapshot's, with this server as the only member and under a new name. The
// old data are moved aside first, as in K3s, also where the snapshot then turns out to be damaged.
func (i Instance) Restore(file string) error {
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("etcd: snapshot path does not exist: %s", file)
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("etcd: snapshot path must be a file, not a directory: %s", file)
	}
	if strings.HasSuffix(file, ".zip") {
		plain, err := decompress(file)
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(plain) }()
		file = plain
	}
	old := fmt.Sprintf("%s-old-%d", i.dir(), time.Now().Unix())
	switch err := os.Rename(i.dir(), old); {
	case err == nil:
		logx.Infof("Pre-restore etcd database moved to %s", old)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	name, err := i.newName()
	if err != nil {
		return err
	}
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: name, OutputDataDir: i.dir(), PeerURLs: []string{i.peerURL()},
		InitialCluster: name + "=" + i.peerURL(),
	}); err != nil {
		return err
	}
	return pki.WriteFile(i.nameFile(), []byte(name), 0o600)
}

// decompress writes the only file of an archive beside it and returns its path.
func decompress(file string) (string, error) {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = archive.Close() }()
	if len(archive.File) != 1 {
		return "", fmt.Errorf("%s: got %d files, want one", file, len(archive.File))
	}
	source, err := archive.File[0].Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = source.Close() }()
	target, err := os.CreateTemp(filepath.Dir(file), "restore-*.part")
	if err != nil {
		return "", err
	}
	if _, err = io.Copy(target, source); errors.Join(err, target.Close()) != nil {
		return "", errors.Join(err, os.Remove(target.Name()))
	}
	return target.Name(), nil
}

// Forget makes the next start take a new name, as K3s's reset does.
func (i Instance) Forget() error {
	if err := os.Remove(i.nameFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// OnlyMember fails unless this server is the cluster's only member.
func (i Instance) OnlyMember(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	name, err := i.Name()
	if err != nil {
		return err
	}
	if len(list.Members) != 1 || list.Members[0].Name != name {
		return fmt.Errorf("etcd has members %v after the reset, want %s only", list.Members, name)
	}
	return nil
}
