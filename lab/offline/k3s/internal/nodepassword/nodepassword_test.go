package nodepassword

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type secrets map[string]string

func (s secrets) Get(_ context.Context, name string) (string, error) { return s[name], nil }

func (s secrets) Create(_ context.Context, name, hash string) (bool, error) {
	s[name] = hash
	return true, nil
}

func TestAllWhoAskForAPasswordThatIsNotThereGetTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	answers := make(chan string)
	for range 32 {
		go func() {
			password, err := Local(path)
			if err != nil {
				password = err.Error()
			}
			answers <- password
		}()
	}
	first := <-answers
	for range 31 {
		if other := <-answers; other != first {
			t.Errorf("got %q and %q", first, other)
		}
	}
}

func TestANameBelongsToTheFirstMachineUntilItsSecretIsDeleted(t *testing.T) {
	ctx, store := context.Background(), secrets{}
	for range 2 {
		if err := Ensure(ctx, store, "Worker-1", "first"); err != nil {
			t.Fatal(err)
		}
	}
	if err := Ensure(ctx, store, "worker-1", "second"); !errors.Is(err, ErrRefused) {
		t.Errorf("another machine got the name: %v", err)
	}
	if err := Ensure(ctx, store, "worker-2", "second"); err != nil {
		t.Errorf("another name was refused: %v", err)
	}
	delete(store, "worker-1.node-password.k3s")
	if err := Ensure(ctx, store, "worker-1", "second"); err != nil {
		t.Errorf("refused without a Secret: %v", err)
	}
}

// overtaken stores a hash between Get and Create, as another server does.
type overtaken struct{ secrets }

func (o overtaken) Create(_ context.Context, name, _ string) (bool, error) {
	hash, err := Hash("first")
	o.secrets[name] = hash
	return false, err
}

func TestOfTwoMachinesThatJoinAtOnceOneIsRefused(t *testing.T) {
	if err := Ensure(context.Background(), overtaken{secrets{}}, "worker-1", "second"); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
}

func TestTheSecretKeepsAHashInK3ssFormat(t *testing.T) {
	hash, err := Hash("password")
	if err != nil || !strings.HasPrefix(hash, "$1:") || strings.Count(hash, ":") != 5 || strings.Contains(hash, "password") {
		t.Errorf("got %q, %v", hash, err)
	}
	if err := matches(hash, "password"); err != nil {
		t.Error(err)
	}
	for _, broken := range []string{"", "password", "$1:00:15:8:1:", "$1:00:60:8:1:AA"} {
		if matches(broken, "") == nil {
			t.Errorf("%q was taken for a hash", broken)
		}
	}
}

func TestAMachineKeepsItsPasswordForRootOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node", "password")
	first, err := Local(path)
	if err != nil || len(first) != 32 {
		t.Fatalf("got %q, %v", first, err)
	}
	if again, err := Local(path); err != nil || again != first {
		t.Errorf("got %q, %v, want %q", again, err, first)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	other, err := Local(filepath.Join(t.TempDir(), "password"))
	if err != nil || other == first {
		t.Errorf("two machines have one password: %v", err)
	}
}
