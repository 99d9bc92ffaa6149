// Package toolkit does the one thing of NVIDIA's container toolkit that others notice: its signal ends containerd, and
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
	"syscall"
	"time"
)

// The toolkit is Ready when it starts, sleeps for 5 s, installs, and sends its signal.
const installs = 4500 * time.Millisecond

// Run ends the agent once, and then stays until the context ends. `processes` is the hosts' /proc.
func Run(ctx context.Context, processes string) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(installs):
	}
	agent, err := find(processes)
	if err != nil {
		return err
	}
	slog.Info("ending the agent", "pid", agent)
	if err := syscall.Kill(agent, syscall.SIGTERM); err != nil {
		return fmt.Errorf("signal to process %d: %w", agent, err)
	}
	<-ctx.Done()
	return nil
}

// find returns the process `k3s agent`.
func find(processes string) (int, error) {
	found, err := filepath.Glob(filepath.Join(processes, "[0-9]*", "cmdline"))
	if err != nil {
		return 0, err
	}
	for _, file := range found {
		text, _ := os.ReadFile(file) // a process that has ended meanwhile is not the agent
		words := bytes.Split(text, []byte{0})
		if len(words) > 1 && path.Base(string(words[0])) == "k3s" && string(words[1]) == "agent" {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, errors.New("no process `k3s agent` on this host")
}
