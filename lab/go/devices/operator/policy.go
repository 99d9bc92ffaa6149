package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// wanted is what a policy asks for.
type wanted struct {
	operands    []operand
	tolerations []any
}

// Policy is one kind of policy object, how it is read, and the operator's lease.
type Policy struct {
	kind, apiVersion, path string
	only                   string            // the one name that counts; empty: any
	lease                  string            // of the operator
	daemonSets             []string          // all that it may ask for, in the order in which they are made
	component              string            // its name in appliedStates; empty where the kind has none
	feature                string            // the label of NFD on nodes with its devices
	nodeLabels             map[string]string // that the operator gives these nodes
	read                   func(spec json.RawMessage) (wanted, error)
}

const (
	toolkitName   = "nvidia-container-toolkit-daemonset"
	gpuPluginName = "nvidia-device-plugin-daemonset"
	validatorName = "nvidia-operator-validator"
	exporterName  = "nvidia-dcgm-exporter"
	hcaPluginName = "network-operator-sriov-device-plugin"

	deploy    = "nvidia.com/gpu.deploy."
	waitMOFED = "network.nvidia.com/operator.mofed.wait"
)

var gpuToleration = map[string]any{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}

// ForPolicy returns the named kind.
func ForPolicy(kind string) (*Policy, error) {
	switch kind {
	case "ClusterPolicy":
		return &Policy{
			kind: kind, apiVersion: "nvidia.com/v1", path: "/apis/nvidia.com/v1/clusterpolicies",
			lease: "53822513.nvidia.com", read: readClusterPolicy,
			daemonSets: []string{toolkitName, gpuPluginName, validatorName, exporterName},
			feature:    "pci-10de.present",
			nodeLabels: map[string]string{
				"nvidia.com/gpu.present": "true", deploy + "container-toolkit": "true", deploy + "device-plugin": "true",
				deploy + "operator-validator": "true", deploy + "dcgm-exporter": "true",
			},
		}, nil
	case "NicClusterPolicy":
		return &Policy{
			kind: kind, apiVersion: "mellanox.com/v1alpha1", path: "/apis/mellanox.com/v1alpha1/nicclusterpolicies",
			only: "nic-cluster-policy", lease: "12620820.mellanox.com", daemonSets: []string{hcaPluginName},
			component: "state-SRIOV-device-plugin", read: readNicClusterPolicy,
			// There is no driver container to wait for.
			feature: "pci-15b3.present", nodeLabels: map[string]string{waitMOFED: "false"},
		}, nil
	}
	return nil, fmt.Errorf("--policy %q: expected ClusterPolicy or NicClusterPolicy", kind)
}

// section is a section of a ClusterPolicy, which is on where it does not say otherwise.
type section struct {
	Enabled *bool `json:"enabled"`
}

func (s section) enabled() bool { return s.Enabled == nil || *s.Enabled }

func readClusterPolicy(text json.RawMessage) (wanted, error) {
	var spec struct {
		Toolkit struct {
			section
			Version string `json:"version"`
		} `json:"toolkit"`
		DevicePlugin section `json:"devicePlugin"`
		DCGMExporter section `json:"dcgmExporter"`
		Daemonsets   struct {
			Tolerations   []any `json:"tolerations"`
			RollingUpdate struct {
				MaxUnavailable string `json:"maxUnavailable"`
			} `json:"rollingUpdate"`
		} `json:"daemonsets"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return wanted{}, err
	}
	strategy := rollingUpdate(spec.Daemonsets.RollingUpdate.MaxUnavailable)
	daemonSet := func(name, label, container string, args ...string) operand {
		return operand{
			name: name, labels: map[string]any{"app": name}, container: container, args: args, updateStrategy: strategy,
			selector: map[string]any{deploy + label: "true"},
		}
	}
	want := wanted{tolerations: spec.Daemonsets.Tolerations}
	if spec.Toolkit.enabled() {
		toolkit := daemonSet(
			toolkitName, "container-toolkit", "nvidia-container-toolkit-ctr",
			"toolkit", "--misses", hardwareFolder+"/toolkit-misses", "--version", spec.Toolkit.Version)
		toolkit.hostPID = true
		want.operands = append(want.operands, toolkit)
	}
	if spec.DevicePlugin.enabled() {
		args := devicePlugin("gpu", "nvidia.com/gpu", "gpus")
		want.operands = append(want.operands, daemonSet(gpuPluginName, "device-plugin", "nvidia-device-plugin", args...))
	}
	validator := daemonSet(validatorName, "operator-validator", "nvidia-operator-validator", "idle")
	validator.validates = []string{"validate", "--count-from", hardwareFolder + "/gpus"}
	want.operands = append(want.operands, validator)
	if spec.DCGMExporter.enabled() {
		exporter := daemonSet(exporterName, "dcgm-exporter", "nvidia-dcgm-exporter", "idle")
		exporter.readyAfter = 45 // assets/state-dcgm-exporter in NVIDIA/gpu-operator
		want.operands = append(want.operands, exporter)
	}
	return want, nil
}

// rollingUpdate is the strategy of all DaemonSets of a ClusterPolicy. The chart's default is a number in quotes.
func rollingUpdate(maxUnavailable string) map[string]any {
	var most any = cmp.Or(maxUnavailable, "1")
	if number, err := strconv.Atoi(most.(string)); err == nil {
		most = number
	}
	return map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": most}}
}

func devicePlugin(kind, resource, source string) []string {
	return []string{
		"device-plugin", "--kind", kind, "--resource", resource, "--count-from", hardwareFolder + "/" + source,
	}
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
	args, err := hcasOf(spec.SRIOVDevicePlugin.Config)
	// No updateStrategy: one node at a time.
	plugin := operand{
		name: hcaPluginName, labels: map[string]any{"app": "sriovdp", "name": hcaPluginName}, container: "kube-sriovdp", args: args,
		selector: map[string]any{nfdPrefix + "pci-15b3.present": "true", waitMOFED: "false"},
	}
	return wanted{[]operand{plugin}, append([]any{gpuToleration}, spec.Tolerations...)}, err
}

const mellanox = "15b3"

// hcasOf returns the arguments for the SR-IOV device plugin's own configuration. Like the plugin it looks at neither the state nor the
// rate of a port (pkg/netdevice/netDeviceProvider.go in k8snetworkplumbingwg/sriov-network-device-plugin).
func hcasOf(config string) ([]string, error) {
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
		return nil, fmt.Errorf("spec.sriovDevicePlugin.config is not JSON: %w", err)
	}
	if len(parsed.ResourceList) != 1 || parsed.ResourceList[0].Name == "" {
		return nil, fmt.Errorf("spec.sriovDevicePlugin.config names %d resources: the lab's simulator offers exactly "+
			"one, with a resourceName", len(parsed.ResourceList))
	}
	resource := parsed.ResourceList[0]
	if vendors := resource.Selectors.Vendors; len(vendors) > 0 && !slices.Contains(vendors, mellanox) {
		return nil, fmt.Errorf("spec.sriovDevicePlugin.config selects the vendors %v: the lab's HCAs are of %s", vendors, mellanox)
	}
	prefix := cmp.Or(resource.Prefix, "intel.com") // the plugin's default
	args := devicePlugin("hca", prefix+"/"+resource.Name, "hcas")
	if addresses := resource.Selectors.PCIAddresses; len(addresses) > 0 {
		args = append(args, "--addresses", strings.Join(addresses, ","))
	}
	return args, nil
}
