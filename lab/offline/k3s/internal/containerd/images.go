package containerd

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"

	"busbar/lab/k3s/internal/images"
	"busbar/lab/k3s/internal/logx"
)

const importDeadline = 10 * time.Minute

// ImportImages imports the archives in <data-dir>/agent/images: all of them at every start, or, if the folder has a
// .cache.json, those that are new or changed since their last import. An archive that cannot be imported is logged,
// as K3s does, and retried at the next start.
func (r *Runtime) ImportImages(ctx context.Context) error {
	folder, err := images.Read(filepath.Join(r.AgentDir, "images"))
	if err != nil {
		return err
	}
	due, err := folder.Due()
	if err != nil {
		return err
	}
	for _, archive := range due {
		logx.Infof("Importing images from %s", archive)
		started := time.Now()
		if err := r.importArchive(ctx, archive); err != nil {
			logx.Errorf("Error encountered while importing %s: %v", archive, err)
			continue
		}
		logx.Infof("Imported images from %s in %s", archive, time.Since(started).Round(time.Millisecond))
		if err := folder.Imported(archive); err != nil {
			return err
		}
	}
	return nil
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
	// "--local" unpacks in the client, as K3s does: containerd's own service knows one snapshotter only.
	return r.ctr(ctx, plain, "--namespace", "k8s.io", "images", "import", "--local",
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
