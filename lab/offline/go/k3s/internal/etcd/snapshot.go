package etcd

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"busbar/lab/k3s/internal/logx"
)

// Snapshots is where a server stores its snapshots, and how many.
type Snapshots struct {
	Instance  Instance
	Dir       string
	Name      string // base name; the node and the time follow
	Retention int
	Compress  bool
	Bucket    *Bucket // nil without etcd-s3
}

// Snapshot is one file in the folder of snapshots. Size in bytes.
type Snapshot struct {
	Name    string
	Path    string
	Size    int64
	Created time.Time
}

const snapshotDeadline = 5 * time.Minute

// Save takes a snapshot called <base>-<node>-<unix time>. A killed save leaves no file under a
// final name.
func (s Snapshots) Save(ctx context.Context, base string) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotDeadline)
	defer cancel()
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return Snapshot{}, err
	}
	client, err := s.Instance.Client()
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = client.Close() }()
	source, err := client.Snapshot(ctx)
	if err != nil {
		return Snapshot{}, fmt.Errorf("etcd returned no snapshot: %w", err)
	}
	defer func() { _ = source.Close() }()

	name := fmt.Sprintf("%s-%s-%d", base, s.Instance.NodeName, time.Now().Unix())
	file := name
	if s.Compress {
		file += ".zip"
	}
	path := filepath.Join(s.Dir, file)
	if err := s.write(source, path, name); err != nil {
		return Snapshot{}, err
	}
	if s.Bucket != nil {
		if err := s.Bucket.Upload(ctx, path); err != nil {
			return Snapshot{}, fmt.Errorf("the upload of %s failed: %w", name, err)
		}
	}
	return describe(path)
}

func (s Snapshots) write(source io.Reader, path, name string) error {
	part, err := os.OpenFile(path+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part.Name()) }()
	var target io.Writer = part
	finish := func() error { return nil }
	if s.Compress {
		archive := zip.NewWriter(part)
		finish = archive.Close
		if target, err = archive.Create(name); err != nil {
			return errors.Join(err, part.Close())
		}
	}
	_, err = io.Copy(target, source)
	if err := errors.Join(err, finish(), part.Sync(), part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), path)
}

func describe(path string) (Snapshot, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{Name: filepath.Base(path), Path: path, Size: info.Size(), Created: info.ModTime()}, nil
}

// List returns the snapshots of this server, oldest first.
func (s Snapshots) List() ([]Snapshot, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Snapshot
	for _, entry := range entries {
		if entry.IsDir() || strings.HasSuffix(entry.Name(), ".part") {
			continue
		}
		one, err := describe(filepath.Join(s.Dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	sort.Slice(list, func(a, b int) bool { return list[a].Created.Before(list[b].Created) })
	return list, nil
}

// Prune keeps the newest Retention snapshots whose name begins with base-<node>- and returns what
// it removed.
func (s Snapshots) Prune(base string) ([]Snapshot, error) {
	all, err := s.List()
	if err != nil || s.Retention < 1 {
		return nil, err
	}
	var ours []Snapshot
	for _, one := range all {
		if strings.HasPrefix(one.Name, base+"-"+s.Instance.NodeName+"-") {
			ours = append(ours, one)
		}
	}
	var gone []Snapshot
	for len(ours) > s.Retention {
		if err := os.Remove(ours[0].Path); err != nil {
			return gone, err
		}
		gone, ours = append(gone, ours[0]), ours[1:]
	}
	return gone, nil
}

// Schedule saves and prunes by a cron expression until ctx ends.
func (s Snapshots) Schedule(ctx context.Context, expression string) error {
	plan, err := cron.ParseStandard(expression)
	if err != nil {
		return fmt.Errorf("etcd-snapshot-schedule-cron: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(plan.Next(time.Now()))):
		}
		saved, err := s.Save(ctx, s.Name)
		if err != nil {
			logx.Errorf("Scheduled snapshot failed: %v", err)
			continue
		}
		logx.Infof("Snapshot %s saved.", saved.Name)
		if _, err := s.Prune(s.Name); err != nil {
			logx.Errorf("Old snapshots were not removed: %v", err)
		}
	}
}
