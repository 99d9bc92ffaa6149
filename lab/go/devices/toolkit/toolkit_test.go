package toolkit

import (
	"os"
	"path/filepath"
	"testing"
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

func TestTheAgentIsFoundAmongOtherProcesses(t *testing.T) {
	folder := processes(t, map[string]string{
		"1": "/sbin/init\x00", "20": "/usr/local/bin/k3s\x00kubectl\x00get\x00", "31": "/usr/local/bin/k3s\x00agent\x00", "4": "",
	})
	if pid, err := find(folder); err != nil || pid != 31 {
		t.Fatalf("got %d, %v", pid, err)
	}
}

func TestAHostWithoutAnAgentIsAnError(t *testing.T) {
	if pid, err := find(processes(t, map[string]string{"20": "/usr/local/bin/k3s\x00server\x00"})); err == nil {
		t.Fatalf("got %d", pid)
	}
}
