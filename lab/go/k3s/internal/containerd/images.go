package containerd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

const importDeadline = 10 * time.Minute

// imported records which archives are in the store, by path. The file lies inside containerd's root,
// so that it is removed together with the images.
type imported map[string]fingerprint

type fingerprint struct {
	Size  int64 `json:"size"`
	MTime int64 `json:"mtime"`
}

func (r *Runtime) importedFile() string { return filepath.Join(r.root(), "imported-archives.json") }

// ImportImages imports every archive in <data-dir>/agent/images that is new or changed. An archive
// that cannot be imported is logged, as K3s does, and retried at the next start.
func (r *Runtime) ImportImages(ctx context.Context) error {
	done := imported{}
	if raw, err := os.ReadFile(r.importedFile()); err == nil {
		if err := json.Unmarshal(raw, &done); err != nil {
			logx.Warnf("%s is damaged, importing all archives again: %v", r.importedFile(), err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(r.AgentDir, "images"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	sort.Slice(entries, func(a, b int) bool { return entries[a].Name() < entries[b].Name() })
	for _, entry := range entries {
		path := filepath.Join(r.AgentDir, "images", entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		mark := fingerprint{info.Size(), info.ModTime().UnixNano()}
		if info.IsDir() || !isArchive(entry.Name()) || done[path] == mark {
			continue
		}
		started := time.Now()
		if err := r.importArchive(ctx, path); err != nil {
			logx.Errorf("Error encountered while importing %s: %v", path, err)
			continue
		}
		logx.Infof("Imported images from %s in %s", path, time.Since(started).Round(time.Millisecond))
		done[path] = mark
		raw, err := json.Marshal(done)
		if err != nil {
			return err
		}
		if err := pki.WriteFile(r.importedFile(), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func isArchive(name string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

func (r *Runtime) importArchive(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, importDeadline)
	defer cancel()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	var plain io.Reader = file
	switch filepath.Ext(path) {
	case ".zst", ".tzst":
		decoder, err := zstd.NewReader(file)
		if err != nil {
			return err
		}
		defer decoder.Close()
		plain = decoder
	case ".gz", ".tgz":
		decoder, err := gzip.NewReader(file)
		if err != nil {
			return err
		}
		plain = decoder
	}
	return r.ctr(ctx, plain, "--namespace", "k8s.io", "images", "import",
		"--snapshotter", r.Snapshotter, "--all-platforms", "-")
}

func (r *Runtime) ctr(ctx context.Context, stdin io.Reader, args ...string) error {
	cmd := exec.CommandContext(ctx, "ctr", append([]string{"--address", Socket}, args...)...)
	cmd.Stdin = stdin
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ctr %s: %w: %s", args[0], err, bytes.TrimSpace(output.Bytes()))
	}
	return nil
}
