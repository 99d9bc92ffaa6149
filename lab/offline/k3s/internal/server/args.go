package server

import (
	"strconv"

	"busbar/lab/k3s/internal/argmap"
	"busbar/lab/k3s/internal/pki"
)

func (s *Server) tls(name string) string { return s.dir("tls", name) }

func (s *Server) apiServerArgs() []string {
	issuer := "https://kubernetes.default.svc." + s.cfg.ClusterDomain
	advertise := s.cfg.AdvertiseAddress
	if advertise == "" {
		advertise = s.nodeIP
	}
	defaults := map[string]string{
		"advertise-address":                  advertise,
		"allow-privileged":                   "true",
		"api-audiences":                      issuer + ",k3s",
		"authorization-mode":                 "Node,RBAC",
		"bind-address":                       s.cfg.BindAddress,
		"cert-dir":                           s.tls("temporary-certs"),
		"client-ca-file":                     s.tls("client-ca.crt"),
		"enable-admission-plugins":           "NodeRestriction",
		"enable-bootstrap-token-auth":        "true",
		"etcd-cafile":                        s.tls("etcd/server-ca.crt"),
		"etcd-certfile":                      s.tls("etcd/client.crt"),
		"etcd-keyfile":                       s.tls("etcd/client.key"),
		"etcd-servers":                       "https://127.0.0.1:2379",
		"kubelet-certificate-authority":      s.tls("server-ca.crt"),
		"kubelet-client-certificate":         s.tls("client-kube-apiserver.crt"),
		"kubelet-client-key":                 s.tls("client-kube-apiserver.key"),
		"kubelet-preferred-address-types":    "InternalIP,ExternalIP,Hostname",
		"profiling":                          "false",
		"proxy-client-cert-file":             s.tls("client-auth-proxy.crt"),
		"proxy-client-key-file":              s.tls("client-auth-proxy.key"),
		"requestheader-allowed-names":        "system:auth-proxy",
		"requestheader-client-ca-file":       s.tls("request-header-ca.crt"),
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-username-headers":     "X-Remote-User",
		"secure-port":                        strconv.Itoa(s.cfg.Port),
		"service-account-issuer":             issuer,
		"service-account-key-file":           s.tls("service.key"),
		"service-account-signing-key-file":   s.tls("service.key"),
		"service-cluster-ip-range":           s.cfg.ServiceCIDR,
		"service-node-port-range":            s.cfg.NodePortRange,
		"storage-backend":                    "etcd3",
		"tls-cert-file":                      s.tls("serving-kube-apiserver.crt"),
		"tls-private-key-file":               s.tls("serving-kube-apiserver.key"),
	}
	// The flag and an AuthenticationConfiguration that names anonymous users exclude each other.
	if !argmap.Has(s.cfg.APIServerArgs, "authentication-config") {
		defaults["anonymous-auth"] = "false"
	}
	if s.cfg.SecretsEncryption {
		defaults["encryption-provider-config"] = s.dir(pki.EncryptionConfig)
	}
	return argmap.Merge(defaults, s.cfg.APIServerArgs)
}

func (s *Server) controllerArgs() []string {
	kubeconfig := s.dir("cred", "controller.kubeconfig")
	return argmap.Merge(map[string]string{
		"allocate-node-cidrs":       "true",
		"authentication-kubeconfig": kubeconfig,
		"authorization-kubeconfig":  kubeconfig,
		"bind-address":              "127.0.0.1",
		"cluster-cidr":              s.cfg.ClusterCIDR,
		"cluster-signing-kube-apiserver-client-cert-file": s.tls("client-ca.crt"),
		"cluster-signing-kube-apiserver-client-key-file":  s.tls("client-ca.key"),
		"cluster-signing-kubelet-client-cert-file":        s.tls("client-ca.crt"),
		"cluster-signing-kubelet-client-key-file":         s.tls("client-ca.key"),
		"cluster-signing-kubelet-serving-cert-file":       s.tls("server-ca.crt"),
		"cluster-signing-kubelet-serving-key-file":        s.tls("server-ca.key"),
		"cluster-signing-legacy-unknown-cert-file":        s.tls("client-ca.crt"),
		"cluster-signing-legacy-unknown-key-file":         s.tls("client-ca.key"),
		"kubeconfig":                       kubeconfig,
		"profiling":                        "false",
		"root-ca-file":                     s.tls("server-ca.crt"),
		"service-account-private-key-file": s.tls("service.key"),
		"service-cluster-ip-range":         s.cfg.ServiceCIDR,
		"use-service-account-credentials":  "true",
	}, s.cfg.ControllerArgs)
}

func (s *Server) schedulerArgs() []string {
	kubeconfig := s.dir("cred", "scheduler.kubeconfig")
	return argmap.Merge(map[string]string{
		"authentication-kubeconfig": kubeconfig,
		"authorization-kubeconfig":  kubeconfig,
		"bind-address":              "127.0.0.1",
		"kubeconfig":                kubeconfig,
		"profiling":                 "false",
	}, s.cfg.SchedulerArgs)
}
