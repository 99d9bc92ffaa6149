// Package operator rolls out the DaemonSets that a policy requests, and writes the progress into the policy's status.
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"busbar/lab/devices/cluster"
)

const lookEvery = time.Second

// Options are the kind of policy to reconcile and what to deploy for it.
type Options struct {
	Client           *cluster.Client
	Policy           *Policy
	Namespace, Image string
	Release          string // of the operator: another one rolls out all of its DaemonSets again
}

// Run reconciles the policies once per second until the context ends, while this pod holds the operator's lease.
// A failed call is retried.
func Run(ctx context.Context, options Options, pod string) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	election := newElection(options.Client, options.Namespace, options.Policy.lease, pod)
	said := ""
	for {
		leads, err := election.leads(ctx)
		if leads {
			err = reconcile(ctx, options)
		}
		if text := fmt.Sprint(err); err != nil && text != said && ctx.Err() == nil {
			slog.Warn("will be tried again", "error", err)
			said = text
		}
		if err == nil {
			said = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func reconcile(ctx context.Context, options Options) error {
	var list struct {
		Items []object `json:"items"`
	}
	err := options.Client.Get(ctx, options.Policy.path, &list)
	if errors.Is(err, cluster.ErrNotFound) {
		return nil // the CRD comes with the chart, or has gone with it
	}
	if err != nil {
		return err
	}
	for index := range list.Items {
		policy := &list.Items[index]
		counts := policy.Metadata.Name == options.Policy.only || (options.Policy.only == "" && index == 0)
		if !counts {
			if err := options.report(ctx, policy, status{State: "ignore", Reason: "there may be one policy"}); err != nil {
				return err
			}
			continue
		}
		state, err := options.rollOut(ctx, policy)
		if err != nil {
			return err
		}
		if err := options.report(ctx, policy, state); err != nil {
			return err
		}
	}
	return nil
}

// rollOut applies what the policy requests and returns the progress.
func (o Options) rollOut(ctx context.Context, policy *object) (status, error) {
	generation := policy.Metadata.Generation
	nodes, err := o.label(ctx)
	if err != nil {
		return status{}, err
	}
	want, err := o.Policy.read(policy.Spec)
	if err != nil {
		return o.Policy.state(generation, "error", "ReconcileFailed", err.Error()), nil
	}
	var unready []string
	for _, name := range o.Policy.daemonSets {
		index := slices.IndexFunc(want.operands, func(one operand) bool { return one.name == name })
		if index < 0 {
			if err := o.Client.Delete(ctx, o.daemonSets()+"/"+name); err != nil {
				return status{}, err
			}
			continue
		}
		found, err := o.apply(ctx, policy, want, want.operands[index])
		if err != nil {
			return status{}, err
		}
		if !found.rolledOut() {
			ready := min(found.Status.Updated, found.Status.Available)
			unready = append(unready, fmt.Sprintf("%s: %d of %d new pods run", name, ready, found.Status.Desired))
		}
	}
	switch {
	case len(unready) > 0:
		return o.Policy.state(generation, "notReady", "OperandNotReady", strings.Join(unready, "; ")), nil
	case !nodes.labelled:
		return o.Policy.state(generation, "ready", "NFDLabelsMissing", "No NFD labels found"), nil
	case !nodes.found:
		return o.Policy.state(generation, "ready", "NoGPUNodes", "no node takes the device plugin"), nil
	}
	return o.Policy.state(generation, "ready", "Reconciled", "all pods run"), nil
}

func (o Options) daemonSets() string {
	return "/apis/apps/v1/namespaces/" + o.Namespace + "/daemonsets"
}

// apply makes or changes a DaemonSet, and returns its status; of one that was changed an empty one, which is not rolled out.
func (o Options) apply(ctx context.Context, policy *object, want wanted, one operand) (daemonSetStatus, error) {
	path := o.daemonSets() + "/" + one.name
	object := o.daemonSet(policy, want, one)
	recipe := object["metadata"].(map[string]any)["annotations"].(map[string]any)[recipeKey]
	var found daemonSetStatus
	err := o.Client.Get(ctx, path, &found)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return daemonSetStatus{}, err
	}
	if err == nil && found.Metadata.Annotations[recipeKey] == recipe {
		return found, nil
	}
	slog.Info("rolling out", "daemonset", one.name)
	found = daemonSetStatus{}
	found.Metadata.Generation = -1
	return found, o.Client.Apply(ctx, path, object)
}
