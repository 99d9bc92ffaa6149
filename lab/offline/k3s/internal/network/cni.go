// Package network gives pods their network: a bridge on every node with the node's own pod CIDR,
// and plain routes between the nodes (what K3s's flannel does with its backend host-gw).
package network

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"busbar/lab/k3s/internal/pki"
)

// hostPlugins are the folders where distributions put the CNI plugins.
var hostPlugins = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// LinkPlugins makes the folder of K3s's CNI plugins and links the host's plugins there.
func LinkPlugins(binDir string) error {
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		return err
	}
	for _, dir := range hostPlugins {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			link := filepath.Join(binDir, entry.Name())
			if _, err := os.Lstat(link); err == nil {
				continue
			}
			if err := os.Symlink(filepath.Join(dir, entry.Name()), link); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteConf writes the CNI configuration for this node's pod CIDR. Its appearance is what turns
// the node Ready.
func WriteConf(confDir, podCIDR string) error {
	type object = map[string]any
	raw, err := json.MarshalIndent(object{
		"name": "cbr0", "cniVersion": "1.0.0",
		"plugins": []object{
			{
				"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
				"ipam": object{"type": "host-local", "ranges": [][]object{{{"subnet": podCIDR}}}},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(confDir, "10-bridge.conflist"), raw, 0o644)
}
