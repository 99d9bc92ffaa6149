// Package toolkit does the one thing of NVIDIA's container toolkit that others notice: its SIGHUP ends containerd, and
// with it K3s on a worker, which systemd then starts again.
package toolkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The toolkit is Ready when it starts, sleeps for 5 s, installs, and sends its signal.
const installs = 4 * time.Second

// Options are a file of the host with a number: so many of the next signals hit the toolkit itself.
type Options struct {
	Misses string
}

// Run ends containerd after the installation, and once more at the end of the context, as the toolkit's clean-up does.
// A toolkit that signals itself ends with exit code 0; the kubelet starts it again.
func Run(ctx context.Context, options Options) error {
	select {
	case <-ctx.Done():
		return nil // nothing was installed
	case <-time.After(installs):
	}
	misses, err := options.misses()
	if err != nil {
		return err
	}
	if misses > 0 {
		slog.Info("the signal hits the toolkit itself", "left", misses-1)
		return os.WriteFile(options.Misses, []byte(strconv.Itoa(misses-1)), 0o644)
	}
	if err := endContainerd(); err != nil {
		return err
	}
	<-ctx.Done()
	return endContainerd()
}

// misses returns the number in the file; a missing file is 0.
func (o Options) misses() (int, error) {
	text, err := os.ReadFile(o.Misses)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func endContainerd() error {
	process, err := find()
	if err != nil {
		return err
	}
	slog.Info("ending containerd", "pid", process)
	if err := syscall.Kill(process, syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal to process %d: %w", process, err)
	}
	return nil
}

// find returns the process of containerd.
func find() (int, error) {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range found {
		text, _ := os.ReadFile(file) // a process that has ended meanwhile is not containerd
		program, _, _ := bytes.Cut(text, []byte{0})
		if path.Base(string(program)) == "containerd" {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, errors.New("no process `containerd` on this host")
}
