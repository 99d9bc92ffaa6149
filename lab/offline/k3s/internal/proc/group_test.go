package proc

import (
	"testing"
	"time"
)

func ends(t *testing.T, group *Group) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the group did not end")
		return nil
	}
}

func TestTheEndOfAVitalChildEndsTheGroupWithoutAnError(t *testing.T) {
	group := NewGroup(t.Context())
	group.Start(Child{Name: "other", Path: "/bin/sleep", Args: []string{"60"}, Grace: time.Second})
	group.Start(Child{Name: "containerd", Path: "/bin/false", Vital: true})
	if err := ends(t, group); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherChildIsStartedAgainUntilItHasEndedFiveTimes(t *testing.T) {
	group := NewGroup(t.Context())
	group.Start(Child{Name: "kubelet", Path: "/bin/false"})
	began := time.Now()
	if err := ends(t, group); err == nil || time.Since(began) < restartPause {
		t.Fatalf("got %v", err)
	}
}

func TestTheEndOfAFatalChildEndsTheGroupWithAnErrorAtOnce(t *testing.T) {
	group := NewGroup(t.Context())
	group.Start(Child{Name: "kube-controller-manager", Path: "/bin/false", Fatal: true})
	began := time.Now()
	if err := ends(t, group); err == nil || time.Since(began) >= restartPause {
		t.Fatalf("got %v after %s", err, time.Since(began))
	}
}

func TestAChildThatHasEndedForGoodIsNotStartedAgain(t *testing.T) {
	ended := 0
	child := Child{Name: "etcd", Path: "/bin/true", Ended: func() { ended++ }}
	if err := child.Run(t.Context()); err != nil || ended != 1 {
		t.Fatalf("got %v, %d ends", err, ended)
	}
}
