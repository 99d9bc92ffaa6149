package pki

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestALeafIsKeptUntilItsNamesChange(t *testing.T) {
	dir := t.TempDir()
	ca, err := EnsureCA(filepath.Join(dir, "ca"), "test-ca")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "leaf")
	issue := func(hosts ...string) []byte {
		t.Helper()
		if err := ca.Ensure(path, Leaf{CommonName: "x", Hosts: hosts}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path + ".crt")
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	first := issue("a", "10.0.0.1")
	if again := issue("10.0.0.1", "a", "a", ""); !bytes.Equal(first, again) {
		t.Error("the same names in another order gave a new certificate")
	}
	changed := issue("a", "10.0.0.2")
	cert, err := parseCert(changed)
	if err != nil || !slices.Equal(hostsOf(cert), []string{"10.0.0.2", "a"}) {
		t.Errorf("got %v, %v", hostsOf(cert), err)
	}
}

func TestASecondStartKeepsTheClustersKeysAndEncryption(t *testing.T) {
	dir := t.TempDir()
	start := func() map[string][]byte {
		t.Helper()
		if _, err := Ensure(dir); err != nil {
			t.Fatal(err)
		}
		if err := EnsureEncryption(dir); err != nil {
			t.Fatal(err)
		}
		files, err := Shared(dir)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	first, second := start(), start()
	if len(first) != len(sharedFiles) {
		t.Errorf("got %d files, want %d", len(first), len(sharedFiles))
	}
	for name := range first {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("%s changed", name)
		}
	}
}

func TestBootstrapDataCannotWriteElsewhere(t *testing.T) {
	if err := WriteShared(t.TempDir(), map[string][]byte{"../../etc/passwd": nil}); err == nil {
		t.Error("a name outside the list was written")
	}
}
