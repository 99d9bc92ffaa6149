package operator

import "testing"

func TestTheResourceNameComesFromTheDevicePluginsConfig(t *testing.T) {
	got, err := readNicClusterPolicy([]byte(`{"sriovDevicePlugin": {"config":
		"{\"resourceList\":[{\"resourcePrefix\":\"nvidia.com\",\"resourceName\":\"hostdev\",\"selectors\":{}}]}"}}`))
	if err != nil || got.resource != "nvidia.com/hostdev" {
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
	if name, err := resourceOf(`{"resourceList":[{"resourceName":"a"},{"resourceName":"b"}]}`); err == nil {
		t.Fatalf("got %s", name)
	}
}

func TestAConfigThatIsNotJSONIsRefused(t *testing.T) {
	if name, err := resourceOf(`resourceList:`); err == nil {
		t.Fatalf("got %s", name)
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
