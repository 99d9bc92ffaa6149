package server

import (
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"busbar/lab/k3s/internal/pki"
)

// certificates issues this server's leaf certificates and writes the kubeconfigs made of them.
func (s *Server) certificates() error {
	domain := s.cfg.ClusterDomain
	serving := pki.Leaf{CommonName: "kube-apiserver", Hosts: append([]string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain,
		"localhost", "127.0.0.1", s.cfg.NodeName, s.nodeIP, s.cfg.NodeExternalIP, s.cfg.AdvertiseAddress,
		firstAddress(s.cfg.ServiceCIDR),
	}, s.cfg.TLSSans...)}
	if err := s.pki.Server.Ensure(s.dir("tls", "serving-kube-apiserver"), serving); err != nil {
		return err
	}
	clients := map[string]pki.Leaf{
		"client-admin":          {CommonName: "system:admin", Groups: []string{"system:masters"}},
		"client-kube-apiserver": {CommonName: "kube-apiserver", Groups: []string{"system:masters"}},
		"client-controller":     {CommonName: "system:kube-controller-manager"},
		"client-scheduler":      {CommonName: "system:kube-scheduler"},
	}
	for name, leaf := range clients {
		if err := s.pki.Client.Ensure(s.dir("tls", name), leaf); err != nil {
			return err
		}
	}
	proxy := pki.Leaf{CommonName: "system:auth-proxy"}
	if err := s.pki.RequestHeader.Ensure(s.dir("tls", "client-auth-proxy"), proxy); err != nil {
		return err
	}
	return s.kubeconfigs()
}

func (s *Server) kubeconfigs() error {
	for _, item := range []struct {
		client, path string
	}{
		{"client-admin", s.dir("cred", "admin.kubeconfig")},
		{"client-controller", s.dir("cred", "controller.kubeconfig")},
		{"client-scheduler", s.dir("cred", "scheduler.kubeconfig")},
	} {
		access := pki.Kubeconfig{Server: s.localURL(), CA: s.pki.Server.Bundle, Client: s.dir("tls", item.client)}
		if err := access.Write(item.path, 0o600); err != nil {
			return err
		}
	}
	admin := pki.Kubeconfig{Server: s.localURL(), CA: s.pki.Server.Bundle, Client: s.dir("tls", "client-admin")}
	path, err := filepath.Abs(s.cfg.KubeconfigPath)
	if err != nil {
		return err
	}
	if err := admin.Write(path, s.cfg.KubeconfigMode); err != nil {
		return err
	}
	s.admin, err = clientcmd.BuildConfigFromFlags("", s.dir("cred", "admin.kubeconfig"))
	return err
}

// firstAddress is the address of the service `kubernetes`.
func firstAddress(cidr string) string {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "" // checked when the configuration was read
	}
	return prefix.Masked().Addr().Next().String()
}
