// Package proc runs the components as child processes of this binary and reports their state to systemd.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"busbar/lab/k3s/internal/logx"
)

// Child is a component to be kept running. Path empty means this binary under the name Args[0].
type Child struct {
	Name string
	Path string
	Args []string
	Env  []string
	// Grace is how long a SIGTERM may take before SIGKILL.
	Grace time.Duration
	// Vital: when it ends, K3s shuts down instead of starting it again.
	Vital bool
	// Fatal: when it ends, K3s ends with an error, as where both are one process.
	Fatal bool
	// Ended is called when it has ended by itself with exit code 0; then it is not started again.
	Ended func()
}

// ErrShutdown is the end of a vital child: K3s shuts down with exit code 0 (pkg/agent/containerd/containerd.go).
var ErrShutdown = errors.New("Shutdown request received")

var errSucceeded = errors.New("exit status 0")

const (
	restartPause = time.Second
	maxFailures  = 5
	calm         = 2 * time.Minute // so long up, and earlier failures are forgotten
)

// Run keeps the child up until ctx ends, then stops it. It returns an error when the child
// cannot be kept up: K3s, where all this is one process, would have ended itself.
func (c Child) Run(ctx context.Context) error {
	failures := 0
	for {
		started := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if c.Vital {
			return fmt.Errorf("%w: %s exited: %w", ErrShutdown, c.Name, err)
		}
		if c.Fatal {
			return fmt.Errorf("%s exited: %w", c.Name, err)
		}
		if c.Ended != nil && errors.Is(err, errSucceeded) {
			c.Ended()
			return nil
		}
		if time.Since(started) > calm {
			failures = 0
		}
		failures++
		if failures >= maxFailures {
			return fmt.Errorf("%s ended %d times in a row: %w", c.Name, failures, err)
		}
		logx.Errorf("%s ended (%v), restarting it", c.Name, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
	}
}

// once runs the child one time. The thread that starts it must live as long as the child, because
// Pdeathsig fires when that thread ends, not the process.
func (c Child) once(ctx context.Context) error {
	ended := make(chan error, 1)
	started := make(chan *os.Process, 1)
	go func() {
		runtime.LockOSThread()
		cmd := c.command()
		if err := cmd.Start(); err != nil {
			close(started)
			ended <- err
			return
		}
		started <- cmd.Process
		err := cmd.Wait()
		if err == nil {
			err = errSucceeded
		}
		ended <- err
	}()
	process, ok := <-started
	if !ok {
		return <-ended
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = process.Signal(syscall.SIGTERM) // it may have ended in this instant
	select {
	case err := <-ended:
		return err
	case <-time.After(c.Grace):
		_ = process.Kill()
		return <-ended
	}
}

func (c Child) command() *exec.Cmd {
	path := c.Path
	if path == "" {
		path = self()
	}
	cmd := exec.Command(path, c.Args...)
	if c.Path == "" {
		cmd.Args[0] = "k3s"
	}
	cmd.Env = append(Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

// self is this binary: by its path, so that `ps` and `ss` show its name, unless the file
// was replaced since the start.
func self() string {
	const running = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil {
		return running
	}
	ours, errOurs := os.Stat(running)
	there, errThere := os.Stat(path)
	if errOurs != nil || errThere != nil || !os.SameFile(ours, there) {
		return running
	}
	return path
}

// secretEnv never reaches a child; with NOTIFY_SOCKET a child could report the state of the unit.
var secretEnv = []string{"NOTIFY_SOCKET", "K3S_TOKEN", "K3S_AGENT_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}

// Environ is this process's environment without what children must not see.
func Environ() []string {
	var kept []string
	for _, pair := range os.Environ() {
		secret := false
		for _, name := range secretEnv {
			if len(pair) > len(name) && pair[:len(name)+1] == name+"=" {
				secret = true
			}
		}
		if !secret {
			kept = append(kept, pair)
		}
	}
	return kept
}
