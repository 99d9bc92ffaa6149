package pki

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
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

// started is the certificate after a start of K3s that was made when new certificates were valid for so many days.
func started(t *testing.T, ca *CA, path, days string) *x509.Certificate {
	t.Helper()
	t.Setenv(LifeEnv, days)
	if err := ca.Ensure(path, Leaf{CommonName: "system:admin"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path + ".crt")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCert(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestACertificateIsRenewedAtAStartWithin120DaysOfItsEnd(t *testing.T) {
	ca, err := EnsureCA(filepath.Join(t.TempDir(), "ca"), "test-ca")
	if err != nil {
		t.Fatal(err)
	}
	for days, renewed := range map[string]bool{"-1": true, "119": true, "122": false, "": false} {
		path := filepath.Join(t.TempDir(), "client-admin")
		first := started(t, ca, path, days)
		second := started(t, ca, path, "")
		if got := !first.Equal(second); got != renewed {
			t.Errorf("valid for %s days: renewed %v, want %v", days, got, renewed)
		}
		if left := time.Until(second.NotAfter).Hours() / 24; renewed && (left < 364 || left > 365) {
			t.Errorf("the new certificate is valid for %.1f days", left)
		}
	}
}

func TestTheKubeconfigHasTheRenewedClientCertificate(t *testing.T) {
	dir := t.TempDir()
	ca, err := EnsureCA(filepath.Join(dir, "ca"), "test-ca")
	if err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(dir, "client-admin")
	written := func() string {
		t.Helper()
		path := filepath.Join(dir, "k3s.yaml")
		if err := (Kubeconfig{Server: "https://127.0.0.1:6443", CA: ca.Bundle, Client: client}).Write(path, 0o600); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	started(t, ca, client, "100")
	before := written()
	started(t, ca, client, "")
	if written() == before {
		t.Error("k3s.yaml kept the certificate that ends in 100 days")
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
