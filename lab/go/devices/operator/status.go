package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"time"
)

type appliedState struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

type condition struct {
	Type       string `json:"type"`
	Status     string `json:"status"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
	Observed   int64  `json:"observedGeneration,omitempty"`
	Transition string `json:"lastTransitionTime"`
}

type status struct {
	State         string         `json:"state"`
	Reason        string         `json:"reason,omitempty"`
	AppliedStates []appliedState `json:"appliedStates,omitempty"`
	Conditions    []condition    `json:"conditions,omitempty"`
}

// state is the status in the format of the policy's kind.
func (p *Policy) state(generation int64, state, reason, message string) status {
	if p.component != "" {
		return componentState(p, generation, state, message)
	}
	if state == "ready" {
		return status{State: state, Conditions: []condition{
			{Type: "Ready", Status: "True", Reason: reason, Message: message},
			{Type: "Error", Status: "False", Reason: "Ready"},
		}}
	}
	return status{State: state, Conditions: []condition{
		{Type: "Ready", Status: "False", Reason: "Error"},
		{Type: "Error", Status: "True", Reason: reason, Message: message},
	}}
}

// componentState is the status of a NicClusterPolicy: a state and a condition per component, and one condition for all,
// each with the generation that it is about (controllers/conditions.go in Mellanox/network-operator).
func componentState(p *Policy, generation int64, state, message string) status {
	applied := appliedState{Name: p.component, State: state}
	component := condition{Type: "SRIOVDevicePluginReady", Status: "False", Reason: "ComponentNotReady", Message: message}
	all := condition{
		Type: "Ready", Status: "False", Reason: "ComponentsNotReady", Message: "One or more components are not yet ready",
	}
	switch state {
	case "ready":
		component.Status, component.Reason, component.Message = "True", "ComponentReady", ""
		all.Status, all.Reason, all.Message = "True", "AllComponentsReady", ""
	case "error":
		component.Reason, all.Reason, all.Message = "ComponentError", "ComponentError", "One or more components are in error state"
	}
	if state != "ready" {
		applied.Message = message
	}
	component.Observed, all.Observed = generation, generation
	return status{State: state, AppliedStates: []appliedState{applied}, Conditions: []condition{component, all}}
}

// report writes the status where it differs. A condition keeps its time while its status stays the same.
func (o Options) report(ctx context.Context, policy *object, now status) error {
	var before status
	if len(policy.Status) > 0 {
		if err := json.Unmarshal(policy.Status, &before); err != nil {
			before = status{} // not ours: write it anew
		}
	}
	for index := range now.Conditions {
		one := &now.Conditions[index]
		one.Transition = time.Now().UTC().Format(time.RFC3339)
		for _, old := range before.Conditions {
			if old.Type == one.Type && old.Status == one.Status && old.Transition != "" {
				one.Transition = old.Transition
			}
		}
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if known, err := json.Marshal(before); err == nil && bytes.Equal(known, text) {
		return nil
	}
	slog.Info("status", "policy", policy.Metadata.Name, "state", now.State)
	return o.Client.Merge(ctx, o.Policy.path+"/"+policy.Metadata.Name+"/status", map[string]any{"status": now})
}
