package operator

import (
	"slices"
	"testing"
)

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

func TestTheNumberOfNodesOfARolloutIsTheOneOfThePolicy(t *testing.T) {
	for given, expected := range map[string]any{"": 1, "3": 3, "25%": "25%"} {
		got := rollingUpdate(given)["rollingUpdate"].(map[string]any)["maxUnavailable"]
		if got != expected {
			t.Fatalf("%q: got %v, expected %v", given, got, expected)
		}
	}
}

func TestAnotherVendorIsRefused(t *testing.T) {
	if got, err := hcasOf(`{"resourceList":[{"resourceName":"a","selectors":{"vendors":["8086"]}}]}`); err == nil {
		t.Fatalf("got %+v", got)
	}
}
