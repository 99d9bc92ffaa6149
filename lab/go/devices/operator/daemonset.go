package operator

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
)

const (
	hardwareParent = "/usr/local/lib" // on every host; the lab's workers have busbar-lab in it
	hardwareFolder = "/hardware/busbar-lab"
	pluginFolder   = "/var/lib/kubelet/device-plugins"
	recipeKey      = "busbar-lab/recipe"
)

type daemonSetStatus struct {
	Metadata struct {
		Generation  int64             `json:"generation"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Status struct {
		Observed  int64 `json:"observedGeneration"`
		Desired   int   `json:"desiredNumberScheduled"`
		Updated   int   `json:"updatedNumberScheduled"`
		Available int   `json:"numberAvailable"`
	} `json:"status"`
}

func (d *daemonSetStatus) rolledOut() bool {
	return d.Status.Observed == d.Metadata.Generation &&
		d.Status.Updated == d.Status.Desired && d.Status.Available == d.Status.Desired
}

// daemonSet is the device plugin on every node that is not a control plane node; it is owned by its policy.
func daemonSet(policy *Policy, owner *object, want wanted, namespace, image string) map[string]any {
	labels := map[string]any{"app": policy.daemonSet}
	arguments := []string{
		"device-plugin", "--kind", want.kind, "--resource", want.resource,
		"--count-from", hardwareFolder + "/" + want.source, "--kubelet-dir", pluginFolder,
	}
	if len(want.addresses) > 0 {
		arguments = append(arguments, "--addresses", strings.Join(want.addresses, ","))
	}
	template := map[string]any{
		"metadata": map[string]any{"labels": labels},
		"spec": map[string]any{
			"automountServiceAccountToken":  false,
			"terminationGracePeriodSeconds": 2,
			"priorityClassName":             "system-node-critical",
			"tolerations":                   want.tolerations,
			"affinity":                      workersOnly,
			"containers": []any{map[string]any{
				"name":            "device-plugin",
				"image":           image,
				"imagePullPolicy": "IfNotPresent",
				"args":            arguments,
				"env":             []any{map[string]any{"name": "GOMEMLIMIT", "value": "16MiB"}},
				"resources":       map[string]any{"requests": map[string]any{"cpu": "5m", "memory": "16Mi"}},
				"volumeMounts": []any{
					map[string]any{"name": "plugins", "mountPath": pluginFolder},
					map[string]any{"name": "hardware", "mountPath": "/hardware", "readOnly": true},
				},
			}},
			"volumes": []any{
				map[string]any{"name": "plugins", "hostPath": map[string]any{"path": pluginFolder}},
				map[string]any{"name": "hardware", "hostPath": map[string]any{"path": hardwareParent}},
			},
		},
	}
	return map[string]any{
		"apiVersion": "apps/v1",
		"kind":       "DaemonSet",
		"metadata": map[string]any{
			"name": policy.daemonSet, "namespace": namespace, "labels": labels,
			"annotations": map[string]any{recipeKey: fingerprint(template)},
			"ownerReferences": []any{map[string]any{
				"apiVersion": policy.apiVersion, "kind": policy.kind,
				"name": owner.Metadata.Name, "uid": owner.Metadata.UID, "controller": true,
			}},
		},
		"spec": map[string]any{
			"selector":       map[string]any{"matchLabels": labels},
			"updateStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": "100%"}},
			"template":       template,
		},
	}
}

var workersOnly = map[string]any{"nodeAffinity": map[string]any{
	"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": []any{
		map[string]any{"matchExpressions": []any{
			map[string]any{"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"},
		}},
	}},
}}

func fingerprint(template map[string]any) string {
	text, err := json.Marshal(template) // keys sorted: the same template, the same text
	if err != nil {
		panic(err) // strings, numbers and maps of them always marshal
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
}
