package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"slices"
	"sort"
	"strconv"
	"time"

	"busbar/lab/k3s/internal/logx"
)

// Leaf is the purpose of a certificate. Hosts are IP addresses or names; with none it is a client
// certificate only.
type Leaf struct {
	CommonName string
	Groups     []string
	Hosts      []string
	Peer       bool // both server and client, as etcd's peers need
}

// Sign issues a certificate for a public key; the answer is the leaf and its CA as PEM.
func (ca *CA) Sign(leaf Leaf, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Groups},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(leafLife()),
		KeyUsage:     x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  leaf.usages(),
	}
	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if host != "" {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, public, ca.Key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), ca.Bundle...), nil
}

// LifeEnv is the variable that K3s's library for certificates (rancher/dynamiclistener) reads: how many days a new
// one is valid.
const LifeEnv = "CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS"

func leafLife() time.Duration {
	text := os.Getenv(LifeEnv)
	days, err := strconv.Atoi(text)
	if text != "" && err != nil {
		logx.Warnf("%s=%s is not a number of days, using 365", LifeEnv, text)
	}
	if text == "" || err != nil {
		days = 365
	}
	return time.Duration(days) * day
}

func (l Leaf) usages() []x509.ExtKeyUsage {
	switch {
	case l.Peer:
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	case len(l.Hosts) > 0:
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	default:
		return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
}

// Ensure keeps path.{crt,key}: it issues anew when the certificate is missing, near its end, of
// another CA, or differs from leaf.
func (ca *CA) Ensure(path string, leaf Leaf) error {
	key, err := EnsureKey(path + ".key")
	if err != nil {
		return err
	}
	if raw, err := os.ReadFile(path + ".crt"); err == nil {
		if cert, err := parseCert(raw); err == nil && ca.good(cert, leaf, key) {
			return nil
		}
	}
	chain, err := ca.Sign(leaf, key.Public())
	if err != nil {
		return err
	}
	return WriteFile(path+".crt", chain, 0o644)
}

func (ca *CA) good(cert *x509.Certificate, leaf Leaf, key crypto.Signer) bool {
	public, comparable := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return comparable && public.Equal(cert.PublicKey) &&
		cert.CheckSignatureFrom(ca.Cert) == nil &&
		time.Until(cert.NotAfter) > renewAt &&
		cert.Subject.CommonName == leaf.CommonName &&
		slices.Equal(sorted(cert.Subject.Organization), sorted(leaf.Groups)) &&
		slices.Equal(hostsOf(cert), sorted(leaf.Hosts)) &&
		slices.Equal(cert.ExtKeyUsage, leaf.usages())
}

func hostsOf(cert *x509.Certificate) []string {
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return sorted(hosts)
}

// sorted returns a sorted copy without empty or double entries.
func sorted(in []string) []string {
	out := slices.Clone(in)
	sort.Strings(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}
