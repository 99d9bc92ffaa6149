// Package operator rolls out the device plugin that a policy requests, and writes the progress into the policy's status.
package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"busbar/lab/devices/cluster"
)

const lookEvery = time.Second

// Options are the kind of policy to reconcile and what to deploy for it.
type Options struct {
	Client           *cluster.Client
	Policy           *Policy
	Namespace, Image string
}

// Run reconciles the policies once per second until the context ends. A failed call is retried.
func Run(ctx context.Context, options Options) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	said := ""
	for {
		err := reconcile(ctx, options)
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
	path := "/apis/apps/v1/namespaces/" + o.Namespace + "/daemonsets/" + o.Policy.daemonSet
	want, err := o.Policy.read(policy.Spec)
	if err != nil {
		return o.state("error", "ReconcileFailed", err.Error()), nil
	}
	if want.resource == "" {
		return o.state("ready", "Reconciled", "no device plugin is asked for"), o.Client.Delete(ctx, path)
	}
	object := daemonSet(o.Policy, policy, want, o.Namespace, o.Image)
	recipe := object["metadata"].(map[string]any)["annotations"].(map[string]any)[recipeKey]
	var found daemonSetStatus
	err = o.Client.Get(ctx, path, &found)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return status{}, err
	}
	if err != nil || found.Metadata.Annotations[recipeKey] != recipe {
		slog.Info("rolling out", "daemonset", o.Policy.daemonSet, "resource", want.resource)
		return o.state("notReady", "OperandNotReady", "the device plugin is being rolled out"),
			o.Client.Apply(ctx, path, object)
	}
	if !found.rolledOut() {
		return o.state("notReady", "OperandNotReady",
			fmt.Sprintf("%d of %d device plugins run", found.Status.Available, found.Status.Desired)), nil
	}
	if found.Status.Desired == 0 {
		return o.state("ready", "NoGPUNodes", "no node takes the device plugin"), nil
	}
	return o.state("ready", "Reconciled", fmt.Sprintf("%d device plugins run", found.Status.Desired)), nil
}

type appliedState struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type status struct {
	State         string         `json:"state"`
	Reason        string         `json:"reason,omitempty"`
	AppliedStates []appliedState `json:"appliedStates,omitempty"`
	Conditions    []condition    `json:"conditions,omitempty"`
}

// state is the status in the format of the policy's kind: conditions, or one state per component.
func (o Options) state(state, reason, message string) status {
	if o.Policy.component != "" {
		applied := appliedState{Name: o.Policy.component, State: state}
		if state != "ready" {
			applied.Message = message
		}
		return status{State: state, AppliedStates: []appliedState{applied}}
	}
	if state == "ready" {
		return status{State: state, Conditions: []condition{
			{"Ready", "True", reason, message}, {"Error", "False", "Ready", ""},
		}}
	}
	return status{State: state, Conditions: []condition{
		{"Ready", "False", "Error", ""}, {"Error", "True", reason, message},
	}}
}

func (o Options) report(ctx context.Context, policy *object, now status) error {
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	var before status
	if len(policy.Status) > 0 {
		if err := json.Unmarshal(policy.Status, &before); err != nil {
			before = status{} // not ours: write it anew
		}
	}
	if known, err := json.Marshal(before); err == nil && bytes.Equal(known, text) {
		return nil
	}
	slog.Info("status", "policy", policy.Metadata.Name, "state", now.State)
	return o.Client.Merge(ctx, o.Policy.path+"/"+policy.Metadata.Name+"/status", map[string]any{"status": now})
}
