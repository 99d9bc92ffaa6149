package hardware

import (
	"os"
	"path/filepath"
	"testing"
)

func inventory(t *testing.T, kind, resource, text string) *Inventory {
	t.Helper()
	file := filepath.Join(t.TempDir(), "devices")
	if text != "" {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := ForKind(kind, resource, file)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestANumberIsThatManyGPUs(t *testing.T) {
	devices, err := inventory(t, "gpu", "nvidia.com/gpu", "2\n").Devices()
	if err != nil || len(devices) != 2 || devices[1].Path != "/dev/nvidia1" {
		t.Fatalf("got %v, %v", devices, err)
	}
}

func TestOneNameALineIsThatManyHCAs(t *testing.T) {
	found := inventory(t, "hca", "nvidia.com/hostdev", "mlx5_0\nmlx5_1\n")
	devices, err := found.Devices()
	if err != nil || len(devices) != 2 || devices[0].Path != "/dev/infiniband/uverbs0" {
		t.Fatalf("got %v, %v", devices, err)
	}
	if found.Variable != "PCIDEVICE_NVIDIA_COM_HOSTDEV" {
		t.Fatalf("got %s", found.Variable)
	}
}

func TestAnInventoryOffersOnlyTheChosenAddressesAndKeepsTheirDeviceNodes(t *testing.T) {
	found := inventory(t, "hca", "nvidia.com/hostdev", "mlx5_0 200 ACTIVE\nmlx5_1 400 ACTIVE\nmlx5_2 400 DOWN\nmlx5_3 400 ACTIVE\n")
	if devices, err := found.Devices(); err != nil || len(devices) != 4 {
		t.Fatalf("without a choice: got %v, %v", devices, err)
	}
	devices, err := found.Only([]string{"0000:21:00.0", "0000:23:00.0"}).Devices()
	if err != nil || len(devices) != 2 || devices[0].ID != "mlx5_1@0000:21:00.0" || devices[1].Path != "/dev/infiniband/uverbs3" {
		t.Fatalf("got %v, %v", devices, err)
	}
}

func TestAHostWithoutTheFileHasNoDevices(t *testing.T) {
	devices, err := inventory(t, "gpu", "nvidia.com/gpu", "").Devices()
	if err != nil || len(devices) != 0 {
		t.Fatalf("got %v, %v", devices, err)
	}
}

func TestAnAbsurdNumberIsAnError(t *testing.T) {
	if devices, err := inventory(t, "gpu", "nvidia.com/gpu", "65").Devices(); err == nil {
		t.Fatalf("got %v", devices)
	}
}

func TestAnUnknownKindIsAnError(t *testing.T) {
	if _, err := ForKind("tpu", "x/y", "/nowhere"); err == nil {
		t.Fatal("accepted")
	}
}
