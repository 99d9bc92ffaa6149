package operator

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"busbar/lab/devices/cluster"
)

// api is as much of an API server as the operator talks to: policies of one kind, and DaemonSets by name.
type api struct {
	t          *testing.T
	policy     map[string]any
	daemonSets map[string]map[string]any
	nodes      map[string]map[string]any // their labels
}

func (a *api) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	_, name, isDaemonSet := strings.Cut(request.URL.Path, "/daemonsets/")
	_, node, isNode := strings.Cut(request.URL.Path, "/nodes/")
	switch {
	case isDaemonSet && request.Method == http.MethodPatch:
		a.daemonSets[name] = decode(a.t, body)
	case isDaemonSet && request.Method == http.MethodDelete:
		delete(a.daemonSets, name)
	case isDaemonSet && a.daemonSets[name] == nil:
		http.NotFound(answer, request)
	case isDaemonSet:
		_ = json.NewEncoder(answer).Encode(a.daemonSets[name])
	case isNode:
		labels := decode(a.t, body)["metadata"].(map[string]any)["labels"].(map[string]any)
		maps.Copy(a.nodes[node], labels)
		maps.DeleteFunc(a.nodes[node], func(_ string, value any) bool { return value == nil })
	case strings.HasSuffix(request.URL.Path, "/nodes"):
		items := []any{}
		for name, labels := range a.nodes {
			items = append(items, map[string]any{"metadata": map[string]any{"name": name, "labels": labels}})
		}
		_ = json.NewEncoder(answer).Encode(map[string]any{"items": items})
	case request.Method == http.MethodPatch:
		a.policy["status"] = decode(a.t, body)["status"]
	default:
		_ = json.NewEncoder(answer).Encode(map[string]any{"items": []any{a.policy}})
	}
}

func decode(t *testing.T, text []byte) map[string]any {
	var value map[string]any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

// available makes all DaemonSets look as their controller leaves them.
func (a *api) available(running, desired int) {
	for _, one := range a.daemonSets {
		one["metadata"].(map[string]any)["generation"] = 1
		one["status"] = map[string]any{
			"observedGeneration": 1, "desiredNumberScheduled": desired,
			"updatedNumberScheduled": desired, "numberAvailable": running,
		}
	}
}

func (a *api) state() string {
	status, _ := a.policy["status"].(map[string]any)
	state, _ := status["state"].(string)
	return state
}

func start(t *testing.T, kind, name, spec string) (*api, func()) {
	t.Helper()
	fake := &api{
		t: t, daemonSets: map[string]map[string]any{},
		policy: map[string]any{"metadata": map[string]any{"name": name, "uid": "1"}, "spec": decode(t, []byte(spec))},
		nodes: map[string]map[string]any{
			"server": {nfdPrefix + "cpu": "true"},
			"worker": {nfdPrefix + "pci-10de.present": "true", nfdPrefix + "pci-15b3.present": "true"},
		},
	}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	policy, err := ForPolicy(kind)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{
		Client: &cluster.Client{Server: server.URL, HTTP: server.Client(), Token: func() (string, error) { return "t", nil }},
		Policy: policy, Namespace: "operators", Image: "devices:1",
	}
	return fake, func() {
		t.Helper()
		if err := reconcile(t.Context(), options); err != nil {
			t.Fatal(err)
		}
	}
}

const hostdev = `{"sriovDevicePlugin": {"config":
	"{\"resourceList\":[{\"resourcePrefix\":\"nvidia.com\",\"resourceName\":\"hostdev\"}]}"}}`

func TestAPolicyOfAnotherNameIsIgnored(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "mine", hostdev)
	look()
	if fake.state() != "ignore" || len(fake.daemonSets) != 0 {
		t.Fatalf("got %v, %v", fake.policy["status"], fake.daemonSets)
	}
}

func TestAnUnreadableConfigIsAnErrorThatSaysWhy(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "nic-cluster-policy", `{"sriovDevicePlugin": {"config": "no"}}`)
	look()
	text, _ := json.Marshal(fake.policy["status"])
	if fake.state() != "error" || !strings.Contains(string(text), "is not JSON") {
		t.Fatalf("got %s", text)
	}
}

func TestAClusterWithoutDevicesIsReadyWithTheReason(t *testing.T) {
	for reason, labels := range map[string]map[string]any{
		"NoGPUNodes": {nfdPrefix + "cpu": "true"}, "NFDLabelsMissing": {},
	} {
		fake, look := start(t, "ClusterPolicy", "cluster-policy", `{}`)
		fake.nodes = map[string]map[string]any{"server": labels}
		look()
		fake.available(0, 0)
		look()
		text, _ := json.Marshal(fake.policy["status"])
		if fake.state() != "ready" || !strings.Contains(string(text), reason) {
			t.Fatalf("expected %s, got %s", reason, text)
		}
	}
}

func TestNodesWithDevicesGetTheLabelsThatTheDaemonSetsSelect(t *testing.T) {
	fake, look := start(t, "ClusterPolicy", "cluster-policy", `{}`)
	fake.nodes["worker"][deploy+"device-plugin"] = "false" // by an administrator
	look()
	spec := fake.daemonSets[toolkitName]["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	for key, value := range spec["nodeSelector"].(map[string]any) {
		if fake.nodes["worker"][key] != value || fake.nodes["server"][key] != nil {
			t.Fatalf("%s: %v", key, fake.nodes)
		}
	}
	if fake.nodes["worker"][deploy+"device-plugin"] != "false" {
		t.Fatalf("got %v", fake.nodes)
	}
}

func TestANodeThatHasLostItsDevicesLosesTheLabels(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "nic-cluster-policy", hostdev)
	look()
	if fake.nodes["worker"][waitMOFED] != "false" {
		t.Fatalf("got %v", fake.nodes)
	}
	delete(fake.nodes["worker"], nfdPrefix+"pci-15b3.present")
	look()
	if len(fake.nodes["worker"]) != 1 {
		t.Fatalf("got %v", fake.nodes)
	}
}

func TestTheConditionsOfANicClusterPolicyAreAboutItsGeneration(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "nic-cluster-policy", hostdev)
	fake.policy["metadata"].(map[string]any)["generation"] = 7
	look()
	fake.available(2, 2)
	look()
	text, _ := json.Marshal(fake.policy["status"])
	var got status
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, one := range got.Conditions {
		if one.Status != "True" || one.Observed != 7 || one.Transition == "" {
			t.Fatalf("got %+v", one)
		}
	}
	if len(got.Conditions) != 2 {
		t.Fatalf("got %+v", got)
	}
}
