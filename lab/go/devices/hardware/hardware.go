// Package hardware is the inventory of a host's simulated devices, and what a container gets with them.
package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Device is one simulated device.
type Device struct {
	ID    string // what the kubelet knows it by
	Path  string // the device node a container finds: /dev/null under another name
	Value string // its part of the environment variable
	Rail  string // folder of the host that a container finds at the same place; empty: none
}

// Folders of a host, one per HCA, in which a limit may be: ../../../nccl/rails.c reads it.
const rails = "/usr/local/lib/busbar-lab/rails/"

// Inventory is the devices of one kind.
type Inventory struct {
	Variable string // set in a container to the values of its devices, joined by commas; empty: none
	CDI      string // the kind under which a container gets its devices by CDI; empty: as device nodes of the kubelet
	source   string
	only     []string // values of the devices to offer; empty: all
	once     bool     // Devices are those of the discovery
	known    []Device
	make     func(index int, name string) Device
}

// ForKind returns the inventory of GPUs or HCAs that the file `source` lists.
func ForKind(kind, resource, source string) (*Inventory, error) {
	switch kind {
	case "gpu":
		// NVIDIA's plugin does so where the operator has CDI enabled, its default (internal/cdi in NVIDIA/k8s-device-plugin).
		return &Inventory{CDI: "k8s.device-plugin.nvidia.com/gpu", source: source, make: gpu}, nil
	case "hca":
		// As the SR-IOV device plugin names it: PCIDEVICE_NVIDIA_COM_HOSTDEV.
		name := strings.NewReplacer("/", "_", ".", "_", "-", "_").Replace(strings.ToUpper(resource))
		return &Inventory{Variable: "PCIDEVICE_" + name, source: source, make: hca}, nil
	}
	return nil, fmt.Errorf("--kind %q: expected gpu or hca", kind)
}

// Only returns the inventory of the devices with these values.
func (i Inventory) Only(values []string) *Inventory {
	i.only = values
	return &i
}

// Once returns the inventory of the devices that are there now. As the SR-IOV plugin it finds none that comes later, and
// keeps those that are lost (pkg/factory and pkg/resources in k8snetworkplumbingwg/sriov-network-device-plugin).
func (i Inventory) Once() (*Inventory, error) {
	known, err := i.Present()
	i.once, i.known = true, known
	return &i, err
}

func gpu(index int, _ string) Device {
	id := fmt.Sprintf("GPU-lab-%d", index)
	return Device{ID: id, Path: fmt.Sprintf("/dev/nvidia%d", index), Value: id}
}

func hca(index int, name string) Device {
	// The device plugin knows HCAs by their PCI address; the lab uses the name.
	address := fmt.Sprintf("0000:%02x:00.0", 0x20+index)
	path := fmt.Sprintf("/dev/infiniband/uverbs%d", index)
	return Device{ID: name + "@" + address, Path: path, Value: address, Rail: rails + name}
}

// Devices returns what the plugin offers.
func (i *Inventory) Devices() ([]Device, error) {
	if i.once {
		return i.known, nil
	}
	return i.Present()
}

// Present reads the file again each time: a host can lose a device. A missing file means no devices.
func (i *Inventory) Present() ([]Device, error) {
	text, err := os.ReadFile(i.source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.source, err)
	}
	var devices []Device
	for index, name := range names {
		if device := i.make(index, name); len(i.only) == 0 || slices.Contains(i.only, device.Value) {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

// parse takes a single number, or lines that begin with a name; what follows a name is for the hosts' sysfs.
func parse(text string) ([]string, error) {
	text = strings.TrimSpace(text)
	if count, err := strconv.Atoi(text); err == nil {
		if count < 0 || count > 64 {
			return nil, fmt.Errorf("%d devices: expected 0 to 64", count)
		}
		names := make([]string, count)
		for index := range names {
			names[index] = strconv.Itoa(index)
		}
		return names, nil
	}
	var names []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			names = append(names, fields[0])
		}
	}
	return names, nil
}
