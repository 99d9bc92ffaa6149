// Package nfd simulates the worker of Node Feature Discovery: it labels its node with the PCI vendors of the devices there.
package nfd

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	"busbar/lab/devices/cluster"
)

const (
	lookEvery = 2 * time.Second
	prefix    = "feature.node.kubernetes.io/"
)

// Vendors of PCI devices, and the file of the host that lists them. An empty list is a device without a driver.
var vendors = map[string]string{"pci-10de.present": "gpus", "pci-15b3.present": "hcas"}

// Options are the node and the folder with its files.
type Options struct {
	Client         *cluster.Client
	Node, Hardware string
}

// Run keeps the labels up to date until the context ends. They stay afterwards.
func Run(ctx context.Context, options Options) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var written map[string]any
	for {
		labels := options.labels()
		if !maps.Equal(labels, written) {
			fields := map[string]any{"metadata": map[string]any{"labels": labels}}
			if err := options.Client.Merge(ctx, "/api/v1/nodes/"+options.Node, fields); err == nil {
				written = labels
				slog.Info("labelled", "node", options.Node, "labels", labels)
			} else if ctx.Err() == nil {
				slog.Warn("will be tried again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// labels of the node; nil removes one.
func (o Options) labels() map[string]any {
	labels := map[string]any{prefix + "system-os_release.ID": "debian"} // every node has labels of NFD
	for label, file := range vendors {
		labels[prefix+label] = nil
		if _, err := os.Stat(filepath.Join(o.Hardware, file)); err == nil {
			labels[prefix+label] = "true"
		}
	}
	return labels
}
