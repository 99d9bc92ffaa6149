package operator

import (
	"encoding/json"
	"fmt"
	"slices"
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
	source      string   // file in the hosts' hardware folder
	addresses   []string // PCI addresses of the devices to offer; empty: all
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
	return wanted{kind: "gpu", resource: "nvidia.com/gpu", source: "gpus", tolerations: spec.Daemonsets.Tolerations}, nil
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
	want, err := hcasOf(spec.SRIOVDevicePlugin.Config)
	want.tolerations = append([]any{gpuToleration}, spec.Tolerations...)
	return want, err
}

const mellanox = "15b3"

// hcasOf reads the SR-IOV device plugin's own configuration. Like the plugin it looks at neither the state nor the
// rate of a port (pkg/netdevice/netDeviceProvider.go in k8snetworkplumbingwg/sriov-network-device-plugin).
func hcasOf(config string) (wanted, error) {
	var parsed struct {
		ResourceList []struct {
			Prefix    string `json:"resourcePrefix"`
			Name      string `json:"resourceName"`
			Selectors struct {
				Vendors      []string `json:"vendors"`
				PCIAddresses []string `json:"pciAddresses"`
			} `json:"selectors"`
		} `json:"resourceList"`
	}
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		return wanted{}, fmt.Errorf("spec.sriovDevicePlugin.config is not JSON: %w", err)
	}
	if len(parsed.ResourceList) != 1 || parsed.ResourceList[0].Name == "" {
		return wanted{}, fmt.Errorf("spec.sriovDevicePlugin.config names %d resources: the lab's simulator offers exactly "+
			"one, with a resourceName", len(parsed.ResourceList))
	}
	resource := parsed.ResourceList[0]
	if vendors := resource.Selectors.Vendors; len(vendors) > 0 && !slices.Contains(vendors, mellanox) {
		return wanted{}, fmt.Errorf("spec.sriovDevicePlugin.config selects the vendors %v: the lab's HCAs are of %s", vendors, mellanox)
	}
	prefix := resource.Prefix
	if prefix == "" {
		prefix = "intel.com" // the plugin's default
	}
	return wanted{
		kind: "hca", resource: prefix + "/" + resource.Name, source: "hcas", addresses: resource.Selectors.PCIAddresses,
	}, nil
}
