// Package pki makes and keeps a cluster's certificate authorities, leaf certificates and
// kubeconfig files, under the names K3s gives them.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

const (
	day    = 24 * time.Hour
	caLife = 10 * 365 * day
	// K3s renews at a start within so many days of the end (CertificateRenewDays in its pkg/daemons/config).
	renewAt = 120 * day
)

// CA is an authority with its key; Bundle is its certificate as PEM.
type CA struct {
	Cert   *x509.Certificate
	Key    crypto.Signer
	Bundle []byte
}

// EnsureCA loads DIR/name.{crt,key} or makes them.
func EnsureCA(path, commonName string) (*CA, error) {
	if _, err := os.Stat(path + ".crt"); err == nil {
		return LoadCA(path)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(0),
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", commonName, now.Unix())},
		NotBefore:             now.Add(-time.Minute),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if err := writeKey(path+".key", key); err != nil {
		return nil, err
	}
	if err := writePEM(path+".crt", "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	return LoadCA(path)
}

// LoadCA reads an authority from path.{crt,key}.
func LoadCA(path string) (*CA, error) {
	bundle, err := os.ReadFile(path + ".crt")
	if err != nil {
		return nil, err
	}
	cert, err := parseCert(bundle)
	if err != nil {
		return nil, fmt.Errorf("%s.crt: %w", path, err)
	}
	key, err := loadKey(path + ".key")
	if err != nil {
		return nil, err
	}
	return &CA{Cert: cert, Key: key, Bundle: bundle}, nil
}

func parseCert(raw []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

func loadKey(path string) (crypto.Signer, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM key", path)
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

// EnsureKey makes an EC private key at path unless one is there.
func EnsureKey(path string) (crypto.Signer, error) {
	if key, err := loadKey(path); err == nil {
		return key, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return key, writeKey(path, key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// WriteFile writes by rename, so that a killed process leaves the old file or the new one.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	if _, err := temporary.Write(content); err != nil {
		return errors.Join(err, temporary.Close())
	}
	if err := errors.Join(temporary.Chmod(mode), temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
