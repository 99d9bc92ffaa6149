package etcd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func data(t *testing.T, i Instance) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(i.dir(), "member", "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(i.dir(), "member", "wal", "0.wal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestASnapshotThatIsMissingOrAFolderLeavesTheDataAlone(t *testing.T) {
	i := Instance{ServerDir: t.TempDir(), NodeName: "s1", NodeIP: "10.0.0.1"}
	data(t, i)
	for path, want := range map[string]string{
		filepath.Join(i.ServerDir, "nothing"): "etcd: snapshot path does not exist: ",
		i.ServerDir:                           "etcd: snapshot path must be a file, not a directory: ",
	} {
		if err := i.Restore(path); err == nil || err.Error() != want+path {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if !i.Initialized() {
		t.Error("the data are gone")
	}
}

func TestADamagedSnapshotIsRefusedAfterTheOldDataWereMovedAside(t *testing.T) {
	i := Instance{ServerDir: t.TempDir(), NodeName: "s1", NodeIP: "10.0.0.1"}
	data(t, i)
	file := filepath.Join(i.ServerDir, "snapshot")
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 1024+32)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.Restore(file); err == nil {
		t.Error("a damaged snapshot was restored")
	}
	old, err := filepath.Glob(filepath.Join(i.ServerDir, "db", "etcd-old-*", "member", "wal", "0.wal"))
	if err != nil || len(old) != 1 {
		t.Errorf("old data: %v, %v", old, err)
	}
}
