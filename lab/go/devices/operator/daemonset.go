package operator

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

const (
	hardwareParent = "/usr/local/lib" // on every host; the lab's workers have busbar-lab in it
	hardwareFolder = "/hardware/busbar-lab"
	pluginFolder   = "/var/lib/kubelet/device-plugins"
	cdiFolder      = "/var/run/cdi"
	recipeKey      = "busbar-lab/recipe"
	releaseKey     = "busbar-lab/operator-release"
)

// operand is a DaemonSet of a policy: one container of this program on each node that has the hardware.
type operand struct {
	name           string
	labels         map[string]any
	container      string
	args           []string
	hostPID        bool
	readyAfter     int      // seconds until the first probe
	validates      []string // arguments of an init container; empty: none
	selector       map[string]any
	updateStrategy map[string]any
}

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

// daemonSet is the operand on every node with its labels; it is owned by its policy.
func (o Options) daemonSet(owner *object, want wanted, one operand) map[string]any {
	container := o.container(one.container, one.args)
	if one.readyAfter > 0 {
		container["readinessProbe"] = map[string]any{
			"exec": map[string]any{"command": []any{"/devices", "ok"}}, "initialDelaySeconds": one.readyAfter,
		}
	}
	var validation []any
	if len(one.validates) > 0 {
		validation = []any{o.container("driver-validation", one.validates)}
	}
	template := map[string]any{
		"metadata": map[string]any{"labels": one.labels, "annotations": map[string]any{releaseKey: o.Release}},
		"spec": map[string]any{
			"automountServiceAccountToken":  false,
			"hostPID":                       one.hostPID,
			"terminationGracePeriodSeconds": 2,
			"priorityClassName":             "system-node-critical",
			"tolerations":                   want.tolerations,
			"nodeSelector":                  one.selector,
			"initContainers":                validation,
			"containers":                    []any{container},
			"volumes": []any{
				map[string]any{"name": "plugins", "hostPath": map[string]any{"path": pluginFolder}},
				map[string]any{"name": "hardware", "hostPath": map[string]any{"path": hardwareParent}},
				map[string]any{"name": "cdi", "hostPath": map[string]any{"path": cdiFolder, "type": "DirectoryOrCreate"}},
			},
		},
	}
	spec := map[string]any{"selector": map[string]any{"matchLabels": one.labels}, "template": template}
	if one.updateStrategy != nil {
		spec["updateStrategy"] = one.updateStrategy
	}
	return map[string]any{
		"apiVersion": "apps/v1",
		"kind":       "DaemonSet",
		"metadata": map[string]any{
			"name": one.name, "namespace": o.Namespace, "labels": one.labels,
			"annotations": map[string]any{recipeKey: fingerprint(spec)},
			"ownerReferences": []any{map[string]any{
				"apiVersion": o.Policy.apiVersion, "kind": o.Policy.kind,
				"name": owner.Metadata.Name, "uid": owner.Metadata.UID, "controller": true,
			}},
		},
		"spec": spec,
	}
}

func (o Options) container(name string, args []string) map[string]any {
	return map[string]any{
		"name":            name,
		"image":           o.Image,
		"imagePullPolicy": "IfNotPresent",
		"args":            args,
		"env":             []any{map[string]any{"name": "GOMEMLIMIT", "value": "16MiB"}},
		"resources":       map[string]any{"requests": map[string]any{"cpu": "5m", "memory": "16Mi"}},
		"volumeMounts": []any{
			map[string]any{"name": "plugins", "mountPath": pluginFolder},
			map[string]any{"name": "hardware", "mountPath": "/hardware"},
			map[string]any{"name": "cdi", "mountPath": cdiFolder},
		},
	}
}

func fingerprint(spec map[string]any) string {
	text, err := json.Marshal(spec) // keys sorted: the same spec, the same text
	if err != nil {
		panic(err) // strings, numbers and maps of them always marshal
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
}
