package operator

import (
	"slices"
	"testing"
)

func TestTheResourceNameComesFromTheDevicePluginsConfig(t *testing.T) {
	got, err := readNicClusterPolicy([]byte(`{"sriovDevicePlugin": {"config":
		"{\"resourceList\":[{\"resourcePrefix\":\"nvidia.com\",\"resourceName\":\"hostdev\",\"selectors\":{}}]}"}}`))
	if err != nil || got.resource != "nvidia.com/hostdev" || len(got.addresses) != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAPolicyWithoutADevicePluginAsksForNothing(t *testing.T) {
	got, err := readNicClusterPolicy([]byte(`{"nvIpam": {}}`))
	if err != nil || got.resource != "" {
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
	if err != nil || got.resource != "" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestGPUsAreOfferedByDefault(t *testing.T) {
	got, err := readClusterPolicy([]byte(`{"daemonsets": {"tolerations": [{"key": "x"}]}}`))
	if err != nil || got.resource != "nvidia.com/gpu" || len(got.tolerations) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestTheDevicePluginOffersThePCIAddressesOfItsSelectors(t *testing.T) {
	got, err := hcasOf(`{"resourceList":[{"resourcePrefix":"nvidia.com","resourceName":"hostdev",
		"selectors":{"vendors":["15b3"],"pciAddresses":["0000:21:00.0","0000:23:00.0"]}}]}`)
	if err != nil || !slices.Equal(got.addresses, []string{"0000:21:00.0", "0000:23:00.0"}) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAnotherVendorIsRefused(t *testing.T) {
	if got, err := hcasOf(`{"resourceList":[{"resourceName":"a","selectors":{"vendors":["8086"]}}]}`); err == nil {
		t.Fatalf("got %+v", got)
	}
}
