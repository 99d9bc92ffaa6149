package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

func member(name, address string) *etcdserverpb.Member {
	return &etcdserverpb.Member{Name: name, PeerURLs: []string{"https://" + address + ":2380"}}
}

var server2 = Instance{NodeName: "server-2", NodeIP: "10.0.0.12"}

func TestAServerWhoseNameAMemberHasIsRefusedAlsoFromItsAddress(t *testing.T) {
	for _, address := range []string{"10.0.0.12", "10.0.0.99"} {
		members := []*etcdserverpb.Member{member("server-1-0a1b2c3d", "10.0.0.11"), member("server-2-4e5f6071", address)}
		_, _, err := server2.place(members, "server-2-99999999")
		if !errors.Is(err, ErrDuplicateName) || err.Error() != "duplicate node name found, please use a unique name for this node" {
			t.Errorf("member at %s: got %v", address, err)
		}
	}
}

func TestANewServerIsNotYetAMember(t *testing.T) {
	members := []*etcdserverpb.Member{member("server-1-0a1b2c3d", "10.0.0.11"), member("server-20-4e5f6071", "10.0.0.20")}
	peers, known, err := server2.place(members, "server-2-99999999")
	want := []string{"server-1-0a1b2c3d=https://10.0.0.11:2380", "server-20-4e5f6071=https://10.0.0.20:2380"}
	if err != nil || known || !slices.Equal(peers, want) {
		t.Errorf("got %v, %v, %v", peers, known, err)
	}
}

func TestAnInterruptedJoinIsContinued(t *testing.T) {
	for _, name := range []string{"", "server-2-99999999"} {
		members := []*etcdserverpb.Member{member("server-1-0a1b2c3d", "10.0.0.11"), member(name, "10.0.0.12")}
		peers, known, err := server2.place(members, "server-2-99999999")
		if err != nil || !known || !slices.Contains(peers, "server-2-99999999=https://10.0.0.12:2380") {
			t.Errorf("%q: got %v, %v, %v", name, peers, known, err)
		}
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

func TestTheDataOfARemovedMemberAreMovedAsideAndNeverDeleted(t *testing.T) {
	instance := Instance{ServerDir: t.TempDir(), NodeName: "server-2"}
	wal := filepath.Join(instance.dir(), "member", "wal", "0.wal")
	if err := errors.Join(os.MkdirAll(filepath.Dir(wal), 0o700), os.WriteFile(wal, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	const server = "https://10.0.0.11:6443"
	if err := instance.MoveRemovedAside(server); err != nil || !instance.Initialized() {
		t.Fatalf("the data of a member were moved: %v", err)
	}
	instance.MarkRemoved()
	if err := instance.MoveRemovedAside(""); err == nil || !instance.Initialized() {
		t.Fatal("a removed server begins a cluster of its own")
	}
	if err := instance.MoveRemovedAside(server); err != nil || instance.Initialized() {
		t.Fatalf("the data of a removed member are used: %v", err)
	}
	if kept, err := filepath.Glob(instance.dir() + "-old-*/member/wal/0.wal"); err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
}
