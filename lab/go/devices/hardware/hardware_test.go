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
