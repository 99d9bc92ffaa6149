package operator

import (
	"context"
	"strings"
)

const nfdPrefix = "feature.node.kubernetes.io/"

// hardware is what the operator knows about the nodes from the labels of Node Feature Discovery.
type hardware struct {
	labelled bool // some node has a label of NFD
	found    bool // some node has this policy's devices
}

// label gives the nodes with this policy's devices the labels that its DaemonSets select, and takes them from others.
// A label that somebody has set to another value stays.
func (o Options) label(ctx context.Context) (hardware, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := o.Client.Get(ctx, "/api/v1/nodes", &list); err != nil {
		return hardware{}, err
	}
	var seen hardware
	for _, node := range list.Items {
		has := node.Metadata.Labels[nfdPrefix+o.Policy.feature] == "true"
		seen.found = seen.found || has
		changes := map[string]any{}
		for key, value := range o.Policy.nodeLabels {
			current, known := node.Metadata.Labels[key]
			if has && !known {
				changes[key] = value
			} else if !has && current == value {
				changes[key] = nil
			}
		}
		for key := range node.Metadata.Labels {
			seen.labelled = seen.labelled || strings.HasPrefix(key, nfdPrefix)
		}
		if len(changes) > 0 {
			fields := map[string]any{"metadata": map[string]any{"labels": changes}}
			if err := o.Client.Merge(ctx, "/api/v1/nodes/"+node.Metadata.Name, fields); err != nil {
				return seen, err
			}
		}
	}
	return seen, nil
}
