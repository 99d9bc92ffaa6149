package secrets

import (
	"errors"
	"strings"
	"testing"
	"time"

	"busbar/lab/k3s/internal/pki"
)

// serverDir has a key and the first state.
func serverDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(pki.EnsureEncryption(dir), EnsureState(dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAKeyIsReplacedInThreeStagesAndEveryServerKnowsItBeforeItIsUsed(t *testing.T) {
	dir := serverDir(t)
	states := []string{Prepare, Rotate, Finished}
	want := [][]string{{"aescbckey", "new"}, {"new", "aescbckey"}, {"new"}}
	for at, stage := range states {
		state, err := Advance(dir, stage, time.Unix(1_700_000_000, 0))
		if err != nil {
			t.Fatal(stage, err)
		}
		list, err := Keys(dir)
		if err != nil || len(list) != len(want[at]) {
			t.Fatalf("%s: got %v, %v", stage, list, err)
		}
		for i, key := range list {
			if (key.Name == "aescbckey") != (want[at][i] == "aescbckey") {
				t.Errorf("%s: key %d is %s, want %s", stage, i, key.Name, want[at][i])
			}
		}
		if kept, err := ReadState(dir); err != nil || kept != state {
			t.Errorf("%s: the state is %q, %v, want %q", stage, kept, err, state)
		}
	}
}

func TestAStageWaitsForAllServersAndForTheStageBeforeIt(t *testing.T) {
	dir := serverDir(t)
	own, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(dir, Prepare, "a", map[string]string{"a": own, "b": own}); err != nil {
		t.Error(err)
	}
	for _, refused := range []struct {
		stage string
		other string
		text  string
	}{
		{Prepare, "prepare-00", "hash does not match between a and b"},
		{Rotate, own, "incorrect stage: start found on node a"},
	} {
		err := Check(dir, refused.stage, "a", map[string]string{"a": own, "b": refused.other})
		if err == nil || err.Error() != refused.text {
			t.Errorf("%s: got %v, want %s", refused.stage, err, refused.text)
		}
	}
}

func TestARequestIsShownUntilItIsForgottenAndIsNoStageOfTheFile(t *testing.T) {
	dir := serverDir(t)
	before, err := Shown(dir)
	if err != nil {
		t.Fatal(err)
	}
	active, err := Request(dir)
	if stage, _, _ := strings.Cut(active, "-"); err != nil || stage != Active || !IsRequested(dir) {
		t.Errorf("got %q, %v, want stage %s", active, err, Active)
	}
	if kept, err := ReadState(dir); err != nil || kept != before {
		t.Errorf("the file says %q, %v, want %q", kept, err, before)
	}
	if err := errors.Join(Forget(dir), Forget(dir)); err != nil {
		t.Error(err)
	}
	if after, err := Shown(dir); err != nil || after != before {
		t.Errorf("got %q, %v, want %q", after, err, before)
	}
}
