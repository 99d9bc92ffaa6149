// Package cdi writes what containerd reads of the Container Device Interface: a file that says what a container gets
// with each device.
package cdi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"busbar/lab/devices/hardware"
)

type edits struct {
	Env         []string `json:"env,omitempty"`
	DeviceNodes []node   `json:"deviceNodes,omitempty"`
}

type node struct {
	Path     string `json:"path"`
	HostPath string `json:"hostPath"`
}

type device struct {
	Name           string `json:"name"`
	ContainerEdits edits  `json:"containerEdits"`
}

// Name is how a device is asked for.
func Name(kind string, one hardware.Device) string { return kind + "=" + one.ID }

// Write replaces the file of a kind in the folder. Every container with one of its devices also gets the environment
// that NVIDIA's library gives it (pkg/nvcdi in NVIDIA/nvidia-container-toolkit): "void" keeps the runtime of NVIDIA from
// adding devices once more.
func Write(folder, kind string, devices []hardware.Device) error {
	spec := struct {
		Version        string   `json:"cdiVersion"`
		Kind           string   `json:"kind"`
		Devices        []device `json:"devices"`
		ContainerEdits edits    `json:"containerEdits"`
	}{Version: "0.5.0", Kind: kind, ContainerEdits: edits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}}
	for _, one := range devices {
		nodes := []node{{Path: one.Path, HostPath: "/dev/null"}}
		spec.Devices = append(spec.Devices, device{Name: one.ID, ContainerEdits: edits{DeviceNodes: nodes}})
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	file := filepath.Join(folder, strings.ReplaceAll(kind, "/", "-")+".json")
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
