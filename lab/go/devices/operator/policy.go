package operator

import (
	"encoding/json"
	"fmt"
)

// object is what the operator reads of a policy.
type object struct {
	Metadata struct {
		Name       string `json:"name"`
		UID        string `json:"uid"`
		Generation int64  `json:"generation"`
	} `json:"metadata"`
	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
}

// wanted is what a policy asks for; without a resource, for nothing.
type wanted struct {
	kind        string // gpu or hca, for the device plugin
	resource    string
	source      string // file in the hosts' hardware folder
	tolerations []any
}

// Policy is one kind of policy object and how it is read.
type Policy struct {
	kind, apiVersion, path string
	only                   string // the one name that counts; empty: any
	daemonSet, component   string // component: its name in appliedStates; empty where the kind has none
	read                   func(spec json.RawMessage) (wanted, error)
}

var gpuToleration = map[string]any{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}

// ForPolicy returns the named kind.
func ForPolicy(kind string) (*Policy, error) {
	switch kind {
	case "ClusterPolicy":
		return &Policy{
			kind: kind, apiVersion: "nvidia.com/v1", path: "/apis/nvidia.com/v1/clusterpolicies",
			daemonSet: "nvidia-device-plugin-daemonset", read: readClusterPolicy,
		}, nil
	case "NicClusterPolicy":
		return &Policy{
			kind: kind, apiVersion: "mellanox.com/v1alpha1", path: "/apis/mellanox.com/v1alpha1/nicclusterpolicies",
			only: "nic-cluster-policy", daemonSet: "network-operator-sriov-device-plugin",
			component: "state-SRIOV-device-plugin", read: readNicClusterPolicy,
		}, nil
	}
	return nil, fmt.Errorf("--policy %q: expected ClusterPolicy or NicClusterPolicy", kind)
}

func readClusterPolicy(text json.RawMessage) (wanted, error) {
	var spec struct {
		DevicePlugin struct {
			Enabled *bool `json:"enabled"`
		} `json:"devicePlugin"`
		Daemonsets struct {
			Tolerations []any `json:"tolerations"`
		} `json:"daemonsets"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return wanted{}, err
	}
	if enabled := spec.DevicePlugin.Enabled; enabled != nil && !*enabled {
		return wanted{}, nil
	}
	return wanted{"gpu", "nvidia.com/gpu", "gpus", spec.Daemonsets.Tolerations}, nil
}

func readNicClusterPolicy(text json.RawMessage) (wanted, error) {
	var spec struct {
		SRIOVDevicePlugin *struct {
			Config string `json:"config"`
		} `json:"sriovDevicePlugin"`
		Tolerations []any `json:"tolerations"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return wanted{}, err
	}
	if spec.SRIOVDevicePlugin == nil {
		return wanted{}, nil
	}
	resource, err := resourceOf(spec.SRIOVDevicePlugin.Config)
	return wanted{"hca", resource, "hcas", append([]any{gpuToleration}, spec.Tolerations...)}, err
}

// resourceOf reads the SR-IOV device plugin's own configuration.
func resourceOf(config string) (string, error) {
	var parsed struct {
		ResourceList []struct {
			Prefix string `json:"resourcePrefix"`
			Name   string `json:"resourceName"`
		} `json:"resourceList"`
	}
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		return "", fmt.Errorf("spec.sriovDevicePlugin.config is not JSON: %w", err)
	}
	if len(parsed.ResourceList) != 1 || parsed.ResourceList[0].Name == "" {
		return "", fmt.Errorf("spec.sriovDevicePlugin.config names %d resources: the lab's simulator offers exactly "+
			"one, with a resourceName", len(parsed.ResourceList))
	}
	prefix := parsed.ResourceList[0].Prefix
	if prefix == "" {
		prefix = "intel.com" // the plugin's default
	}
	return prefix + "/" + parsed.ResourceList[0].Name, nil
}
