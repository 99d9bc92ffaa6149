package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/proc"
)

const (
	readyDeadline = 60 * time.Second
	stopDeadline  = 10 * time.Second
	pollInterval  = 200 * time.Millisecond
)

// Prepare picks a snapshotter that works on this filesystem, writes the configuration and makes
// sure that no containerd of an earlier process still holds the socket.
func (r *Runtime) Prepare(ctx context.Context) error {
	for _, dir := range []string{r.root(), r.CNIConfDir, filepath.Dir(Socket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if r.Snapshotter == "overlayfs" {
		if err := overlayWorks(r.root()); err != nil {
			logx.Warnf("overlayfs is refused below %s (%v), using the native snapshotter", r.root(), err)
			r.Snapshotter = "native"
		}
	}
	if err := r.WriteConfig(); err != nil {
		return err
	}
	return r.stopLeftOver(ctx)
}

// overlayWorks mounts a tiny overlay where containerd would.
func overlayWorks(dir string) error {
	trial, err := os.MkdirTemp(dir, ".overlay-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(trial) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(trial, name), 0o700); err != nil {
			return err
		}
	}
	merged := filepath.Join(trial, "merged")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", trial)
	if err := syscall.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return err
	}
	return syscall.Unmount(merged, 0)
}

// stopLeftOver ends a containerd that an earlier k3s left running; its shims, and so the
// containers, keep running and the next containerd finds them.
func (r *Runtime) stopLeftOver(ctx context.Context) error {
	pid, err := r.findRunning()
	if err != nil || pid == 0 {
		return err
	}
	logx.Infof("Stopping containerd (pid %d) of an earlier run", pid)
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	deadline := time.Now().Add(stopDeadline)
	for process.Signal(syscall.Signal(0)) == nil {
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd (pid %d) of an earlier run did not end within %s", pid, stopDeadline)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// findRunning looks for a process that runs containerd with our configuration file.
func (r *Runtime) findRunning() (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(string(raw), "\x00")
		if filepath.Base(args[0]) == "containerd" && strings.Contains(string(raw), "\x00"+r.Config()+"\x00") {
			return pid, nil
		}
	}
	return 0, nil
}

// Child is containerd as a child process.
func (r *Runtime) Child() (proc.Child, error) {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return proc.Child{}, fmt.Errorf("this replacement of K3s runs the host's containerd, which is not on PATH: %w", err)
	}
	return proc.Child{
		Name: "containerd", Path: path, Args: []string{"-c", r.Config(), "-l", "warn"}, Grace: stopDeadline, Vital: true,
	}, nil
}

// WaitReady blocks until containerd answers on its socket.
func (r *Runtime) WaitReady(ctx context.Context) error {
	deadline := time.Now().Add(readyDeadline)
	for {
		conn, err := net.Dial("unix", Socket)
		if err == nil {
			_ = conn.Close()
			err = r.ctr(ctx, nil, "version")
			if err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not answer on %s after %s: %w", Socket, readyDeadline, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}
