package operator

import (
	"slices"
	"testing"
)

// argument returns what follows a flag in the arguments of the only operand.
func argument(t *testing.T, want wanted, flag string) string {
	t.Helper()
	if len(want.operands) != 1 {
		t.Fatalf("got %+v", want)
	}
	args := want.operands[0].args
	if index := slices.Index(args, flag); index >= 0 {
		return args[index+1]
	}
	return ""
}

func TestTheResourceNameComesFromTheDevicePluginsConfig(t *testing.T) {
	got, err := readNicClusterPolicy([]byte(`{"sriovDevicePlugin": {"config":
		"{\"resourceList\":[{\"resourcePrefix\":\"nvidia.com\",\"resourceName\":\"hostdev\",\"selectors\":{}}]}"}}`))
	if err != nil || argument(t, got, "--resource") != "nvidia.com/hostdev" || argument(t, got, "--addresses") != "" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAPolicyWithoutADevicePluginAsksForNothing(t *testing.T) {
	got, err := readNicClusterPolicy([]byte(`{"nvIpam": {}}`))
	if err != nil || len(got.operands) != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestTwoResourcesAreRefused(t *testing.T) {
	if got, err := hcasOf(`{"resourceList":[{"resourceName":"a"},{"resourceName":"b"}]}`); err == nil {
		t.Fatalf("got %+v", got)
	}
}

func TestAConfigThatIsNotJSONIsRefused(t *testing.T) {
	if got, err := hcasOf(`resourceList:`); err == nil {
		t.Fatalf("got %+v", got)
	}
}

func TestADisabledDevicePluginOffersNoGPUs(t *testing.T) {
	got, err := readClusterPolicy([]byte(`{"devicePlugin": {"enabled": false}}`))
	if err != nil || slices.ContainsFunc(got.operands, func(one operand) bool { return one.name == gpuPluginName }) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestADisabledToolkitRestartsNothing(t *testing.T) {
	got, err := readClusterPolicy([]byte(`{"toolkit": {"enabled": false}}`))
	if err != nil || slices.ContainsFunc(got.operands, func(one operand) bool { return one.name == toolkitName }) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAllDaemonSetsOfAClusterPolicyAreAskedForByDefault(t *testing.T) {
	policy, err := ForPolicy("ClusterPolicy")
	if err != nil {
		t.Fatal(err)
	}
	got, err := policy.read([]byte(`{"daemonsets": {"tolerations": [{"key": "x"}]}}`))
	var names []string
	for _, one := range got.operands {
		names = append(names, one.name)
	}
	if err != nil || !slices.Equal(names, policy.daemonSets) || len(got.tolerations) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestTheNumberOfNodesOfARolloutIsTheOneOfThePolicy(t *testing.T) {
	for given, expected := range map[string]any{"": 1, "3": 3, "25%": "25%"} {
		got := rollingUpdate(given)["rollingUpdate"].(map[string]any)["maxUnavailable"]
		if got != expected {
			t.Fatalf("%q: got %v, expected %v", given, got, expected)
		}
	}
}

func TestTheDevicePluginOffersThePCIAddressesOfItsSelectors(t *testing.T) {
	got, err := hcasOf(`{"resourceList":[{"resourcePrefix":"nvidia.com","resourceName":"hostdev",
		"selectors":{"vendors":["15b3"],"pciAddresses":["0000:21:00.0","0000:23:00.0"]}}]}`)
	if err != nil || got[len(got)-1] != "0000:21:00.0,0000:23:00.0" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAnotherVendorIsRefused(t *testing.T) {
	if got, err := hcasOf(`{"resourceList":[{"resourceName":"a","selectors":{"vendors":["8086"]}}]}`); err == nil {
		t.Fatalf("got %+v", got)
	}
}
