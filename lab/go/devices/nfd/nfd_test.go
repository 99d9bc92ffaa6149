package nfd

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAHostIsLabelledWithTheVendorsOfItsDevicesAlsoWithoutADriver(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "hcas"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got := Options{Hardware: folder}.labels()
	if got[prefix+"pci-15b3.present"] != "true" || got[prefix+"pci-10de.present"] != nil {
		t.Fatalf("got %v", got)
	}
}
