package toolkit

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func processes(t *testing.T, lines map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for pid, line := range lines {
		if err := os.MkdirAll(filepath.Join(folder, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, pid, "cmdline"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestContainerdIsFoundAmongOtherProcesses(t *testing.T) {
	folder := processes(t, map[string]string{
		"1": "/sbin/init\x00", "20": "/usr/bin/containerd-shim-runc-v2\x00", "31": "/usr/bin/containerd\x00-c\x00", "4": "",
	})
	if pid, err := find(folder); err != nil || pid != 31 {
		t.Fatalf("got %d, %v", pid, err)
	}
}

func TestAHostWithoutContainerdIsAnError(t *testing.T) {
	if pid, err := find(processes(t, map[string]string{"20": "/usr/local/bin/k3s\x00server\x00"})); err == nil {
		t.Fatalf("got %d", pid)
	}
}

// agent is a process that ends by the signal; what it ended with comes out of the channel.
func containerd(t *testing.T) (pid string, ended <-chan struct{}) {
	t.Helper()
	// Under nohup every child would ignore the signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	process := exec.Command("sleep", "60")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = process.Wait(); close(done) }()
	t.Cleanup(func() { _ = process.Process.Kill() })
	return strconv.Itoa(process.Process.Pid), done
}

func expectEnd(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("containerd was not ended")
	}
}

func TestContainerdIsEndedAfterTheInstallationAndAtTheEndOfTheToolkit(t *testing.T) {
	first, firstEnded := containerd(t)
	folder := processes(t, map[string]string{first: "/usr/bin/containerd\x00"})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, Options{Processes: folder, Misses: filepath.Join(folder, "misses")}) }()
	expectEnd(t, firstEnded)

	second, secondEnded := containerd(t) // systemd has started it again
	if err := os.Rename(filepath.Join(folder, first), filepath.Join(folder, second)); err != nil {
		t.Fatal(err)
	}
	stop()
	expectEnd(t, secondEnded)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestASignalThatHitsTheToolkitLeavesContainerdAlone(t *testing.T) {
	pid, ended := containerd(t)
	folder := processes(t, map[string]string{pid: "/usr/bin/containerd\x00"})
	misses := filepath.Join(folder, "misses")
	if err := os.WriteFile(misses, []byte("2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), Options{Processes: folder, Misses: misses}); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(misses); string(text) != "1" {
		t.Fatalf("got %q", text)
	}
	select {
	case <-ended:
		t.Fatal("containerd was ended")
	default:
	}
}
