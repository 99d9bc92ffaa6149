package operator

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"busbar/lab/devices/cluster"
)

// api is as much of an API server as the operator talks to: policies of one kind, and one DaemonSet.
type api struct {
	t         *testing.T
	policy    map[string]any
	daemonSet map[string]any
	applied   int
}

func (a *api) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	isDaemonSet := strings.Contains(request.URL.Path, "/daemonsets/")
	switch {
	case isDaemonSet && request.Method == http.MethodPatch:
		a.applied++
		a.daemonSet = decode(a.t, body)
	case isDaemonSet && request.Method == http.MethodDelete:
		a.daemonSet = nil
	case isDaemonSet && a.daemonSet == nil:
		http.NotFound(answer, request)
	case isDaemonSet:
		_ = json.NewEncoder(answer).Encode(a.daemonSet)
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

// available makes the DaemonSet look as its controller leaves it.
func (a *api) available(running, desired int) {
	a.daemonSet["metadata"].(map[string]any)["generation"] = 1
	a.daemonSet["status"] = map[string]any{
		"observedGeneration": 1, "desiredNumberScheduled": desired,
		"updatedNumberScheduled": desired, "numberAvailable": running,
	}
}

func (a *api) state() string {
	status, _ := a.policy["status"].(map[string]any)
	state, _ := status["state"].(string)
	return state
}

func start(t *testing.T, kind, name, spec string) (*api, func()) {
	t.Helper()
	fake := &api{t: t, policy: map[string]any{
		"metadata": map[string]any{"name": name, "uid": "1"}, "spec": decode(t, []byte(spec)),
	}}
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

func TestAPolicyIsReadyWhenItsPluginsRunAndNotBefore(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "nic-cluster-policy", hostdev)
	look()
	if fake.state() != "notReady" || fake.daemonSet == nil {
		t.Fatalf("at first: %v", fake.policy["status"])
	}
	fake.available(1, 2)
	look()
	if fake.state() != "notReady" {
		t.Fatalf("one of two: %v", fake.policy["status"])
	}
	fake.available(2, 2)
	look()
	if fake.state() != "ready" {
		t.Fatalf("all: %v", fake.policy["status"])
	}
}

func TestThePluginIsToldTheResourceOfThePolicy(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "nic-cluster-policy", hostdev)
	look()
	text, _ := json.Marshal(fake.daemonSet)
	if !strings.Contains(string(text), `"--resource","nvidia.com/hostdev"`) {
		t.Fatalf("got %s", text)
	}
}

func TestAnUnchangedPolicyIsRolledOutOnce(t *testing.T) {
	fake, look := start(t, "ClusterPolicy", "cluster-policy", `{}`)
	look()
	fake.available(2, 2)
	look()
	look()
	if fake.applied != 1 {
		t.Fatalf("applied %d times", fake.applied)
	}
}

func TestAChangedPolicyIsRolledOutAgain(t *testing.T) {
	fake, look := start(t, "ClusterPolicy", "cluster-policy", `{}`)
	look()
	fake.policy["spec"] = decode(t, []byte(`{"daemonsets": {"tolerations": [{"operator": "Exists"}]}}`))
	look()
	if fake.applied != 2 {
		t.Fatalf("applied %d times", fake.applied)
	}
}

func TestAPolicyOfAnotherNameIsIgnored(t *testing.T) {
	fake, look := start(t, "NicClusterPolicy", "mine", hostdev)
	look()
	if fake.state() != "ignore" || fake.daemonSet != nil {
		t.Fatalf("got %v, %v", fake.policy["status"], fake.daemonSet)
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

func TestAClusterWithoutWorkersIsReadyWithTheReason(t *testing.T) {
	fake, look := start(t, "ClusterPolicy", "cluster-policy", `{}`)
	look()
	fake.available(0, 0)
	look()
	text, _ := json.Marshal(fake.policy["status"])
	if fake.state() != "ready" || !strings.Contains(string(text), "NoGPUNodes") {
		t.Fatalf("got %s", text)
	}
}
