package etcd

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPruneKeepsTheNewestOfItsOwnName(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for age, name := range []string{"etcd-snapshot-s1-5", "etcd-snapshot-s1-4", "on-demand-s1-3", "etcd-snapshot-s1-2", "etcd-snapshot-s10-1"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now, now.Add(-time.Duration(age)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	s := Snapshots{Instance: Instance{NodeName: "s1"}, Dir: dir, Retention: 2}
	gone, err := s.Prune("etcd-snapshot")
	if err != nil || len(gone) != 1 || gone[0].Name != "etcd-snapshot-s1-2" {
		t.Errorf("removed %v, %v", gone, err)
	}
	if left, err := s.List(); err != nil || len(left) != 4 || left[0].Name != "etcd-snapshot-s10-1" {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestAMemberKeepsItsNameAndIsInitializedByItsLog(t *testing.T) {
	i := Instance{ServerDir: t.TempDir(), NodeName: "s1", NodeIP: "10.0.0.1"}
	first, err := i.Name()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := i.Name(); err != nil || again != first || len(first) != len("s1-12345678") {
		t.Errorf("got %q then %q, %v", first, again, err)
	}
	if i.Initialized() {
		t.Error("no data yet")
	}
	wal := filepath.Join(i.dir(), "member", "wal")
	if err := os.MkdirAll(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wal, "0.wal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !i.Initialized() {
		t.Error("data on disk were not seen")
	}
}
