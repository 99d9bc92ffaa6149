package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"busbar/lab/devices/cluster"
)

// The defaults of sigs.k8s.io/controller-runtime, which both operators leave as they are.
const (
	leaseDuration = 15 * time.Second
	renewEvery    = 2 * time.Second
)

// lease is what the election reads and writes of a Lease.
type lease struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       leaseSpec      `json:"spec"`
}

type leaseSpec struct {
	Holder      string `json:"holderIdentity"`
	Seconds     int    `json:"leaseDurationSeconds"`
	Acquired    string `json:"acquireTime"`
	Renewed     string `json:"renewTime"`
	Transitions int    `json:"leaseTransitions"`
}

// election decides which pod of an operator acts. The lease is not released at the end of a pod, so that the next pod
// waits for leaseDuration after the last renewal that it has seen.
type election struct {
	client     *cluster.Client
	collection string // of the leases of the operator's namespace
	name       string
	identity   string

	seen    leaseSpec // the last lease of another pod, and since when it is unchanged
	seenAt  time.Time
	renewed time.Time
}

func newElection(client *cluster.Client, namespace, name, pod string) *election {
	return &election{
		client: client, collection: "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases", name: name,
		identity: pod + "_" + rand.Text(),
	}
}

// leads acquires or renews the lease where that is due, and returns whether this pod holds it.
func (e *election) leads(ctx context.Context) (bool, error) {
	now := time.Now()
	if now.Sub(e.renewed) < renewEvery {
		return true, nil
	}
	var found lease
	err := e.client.Get(ctx, e.collection+"/"+e.name, &found)
	if errors.Is(err, cluster.ErrNotFound) {
		fresh := lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: map[string]any{"name": e.name}}
		fresh.Spec = e.mine(leaseSpec{}, now)
		return e.held(now, e.client.Create(ctx, e.collection, fresh))
	}
	if err != nil {
		return false, err
	}
	if found.Spec.Holder != e.identity {
		if found.Spec != e.seen {
			e.seen, e.seenAt = found.Spec, now
			slog.Info("waiting for the lease", "name", e.name, "holder", found.Spec.Holder)
		}
		if now.Sub(e.seenAt) < leaseDuration {
			return false, nil
		}
	}
	found.Spec = e.mine(found.Spec, now)
	return e.held(now, e.client.Replace(ctx, e.collection+"/"+e.name, found))
}

func (e *election) mine(before leaseSpec, now time.Time) leaseSpec {
	text := now.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	spec := leaseSpec{
		Holder: e.identity, Seconds: int(leaseDuration.Seconds()), Acquired: before.Acquired, Renewed: text,
		Transitions: before.Transitions,
	}
	if before.Holder != e.identity {
		slog.Info("leading", "lease", e.name)
		spec.Acquired = text
		if before.Holder != "" {
			spec.Transitions++
		}
	}
	return spec
}

func (e *election) held(now time.Time, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	e.renewed = now
	return true, nil
}
