package operator

import (
	"testing"
	"time"
)

// contender is a pod of the operator; its clock is the test's.
func contender(t *testing.T, options Options, pod string, now *time.Time) func() bool {
	t.Helper()
	election := newElection(options.Client, "operators", options.Policy.lease, pod)
	election.now = func() time.Time { return *now }
	return func() bool {
		t.Helper()
		leads, err := election.leads(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return leads
	}
}

func TestASecondPodLeadsWhenTheLeaseOfTheFirstHasExpired(t *testing.T) {
	fake, options := serve(t, "ClusterPolicy", "cluster-policy", `{}`)
	now := time.Now()
	first, second := contender(t, options, "pod-1", &now), contender(t, options, "pod-2", &now)
	if !first() || second() {
		t.Fatal("the first pod acquires a lease that nobody holds")
	}
	now = now.Add(2 * leaseDuration)
	if !first() || second() {
		t.Fatal("the first pod renews its lease")
	}
	now = now.Add(leaseDuration - time.Second) // the first pod has ended
	if second() {
		t.Fatal("the lease has not expired")
	}
	now = now.Add(time.Second)
	if !second() {
		t.Fatal("the lease has expired")
	}
	spec := fake.lease["spec"].(map[string]any)
	if holder := spec["holderIdentity"].(string); holder[:6] != "pod-2_" || spec["leaseTransitions"] != 1.0 {
		t.Fatalf("got %v", spec)
	}
}

func TestAPodThatStartsAgainWaitsForItsOwnFormerLease(t *testing.T) {
	_, options := serve(t, "ClusterPolicy", "cluster-policy", `{}`)
	now := time.Now()
	former := contender(t, options, "pod-1", &now)
	again := contender(t, options, "pod-1", &now)
	if !former() || again() {
		t.Fatal("an identity is one life of a pod")
	}
}
