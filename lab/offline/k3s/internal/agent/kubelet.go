package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"busbar/lab/k3s/internal/argmap"
	"busbar/lab/k3s/internal/containerd"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/proc"
)

const (
	kubeletHealth   = "http://127.0.0.1:10248/healthz"
	kubeletDeadline = 2 * time.Minute
)

// kubeletConfig is K3s's 00-k3s-defaults.conf; a site's files in the same folder are read later and override it.
func (n *Node) kubeletConfig() ([]byte, error) {
	resolvConf, err := n.resolvConf()
	if err != nil {
		return nil, err
	}
	type object = map[string]any
	return yaml.Marshal(object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "0.0.0.0",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true, "cacheTTL": "2m0s"},
			"x509":      object{"clientCAFile": n.dir("client-ca.crt")},
		},
		"authorization":            object{"mode": "Webhook"},
		"cgroupDriver":             cgroupDriver(),
		"clusterDNS":               []string{n.cluster.ClusterDNS},
		"clusterDomain":            n.cluster.ClusterDomain,
		"containerRuntimeEndpoint": "unix://" + containerd.Socket,
		"evictionHard":             object{"imagefs.available": "5%", "nodefs.available": "5%"},
		"evictionMinimumReclaim":   object{"imagefs.available": "10%", "nodefs.available": "10%"},
		"failSwapOn":               false,
		"healthzBindAddress":       "127.0.0.1",
		"protectKernelDefaults":    n.Config.ProtectKernel,
		"readOnlyPort":             0,
		"resolvConf":               resolvConf,
		"serializeImagePulls":      false,
		"staticPodPath":            n.dir("pod-manifests"),
		"tlsCertFile":              n.dir("serving-kubelet.crt"),
		"tlsPrivateKeyFile":        n.dir("serving-kubelet.key"),
	})
}

// cgroupDriver is systemd's on cgroup v2 under systemd, as K3s chooses it.
func cgroupDriver() string {
	_, unified := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	if unified == nil && os.Getenv("INVOCATION_ID") != "" {
		return "systemd"
	}
	return "cgroupfs"
}

// resolvConf is the host's, or one with a public name server where the host's names none that a
// pod could reach (K3s does the same).
func (n *Node) resolvConf() (string, error) {
	if n.Config.ResolvConf != "" {
		return n.Config.ResolvConf, nil
	}
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		raw, err := os.ReadFile(path)
		if err == nil && usableResolver(string(raw)) {
			return path, nil
		}
	}
	path := n.dir("etc", "resolv.conf")
	logx.Warnf("Host resolv.conf includes no usable nameserver; using nameserver 8.8.8.8 in %s", path)
	return path, pki.WriteFile(path, []byte("nameserver 8.8.8.8\n"), 0o644)
}

func usableResolver(text string) bool {
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "nameserver" && !strings.HasPrefix(fields[1], "127.") && fields[1] != "::1" {
			return true
		}
	}
	return false
}

func (n *Node) kubeletArgs() []string {
	labels := append([]string{"node.kubernetes.io/instance-type=k3s"}, n.Config.NodeLabels...)
	defaults := map[string]string{
		"config-dir":        n.dir("etc", "kubelet.conf.d"),
		"hostname-override": n.Config.NodeName,
		"kubeconfig":        n.dir("kubelet.kubeconfig"),
		"node-ip":           n.NodeIP,
		"node-labels":       strings.Join(labels, ","),
		"provider-id":       "k3s://" + n.Config.NodeName,
	}
	if len(n.Config.NodeTaints) > 0 {
		defaults["register-with-taints"] = strings.Join(n.Config.NodeTaints, ",")
	}
	return argmap.Merge(defaults, n.Config.KubeletArgs)
}

func (n *Node) startKubelet() error {
	raw, err := n.kubeletConfig()
	if err != nil {
		return err
	}
	dir := n.dir("etc", "kubelet.conf.d")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(n.dir("pod-manifests"), 0o755)); err != nil {
		return err
	}
	if err := pki.WriteFile(filepath.Join(dir, "00-k3s-defaults.conf"), raw, 0o600); err != nil {
		return err
	}
	n.Group.Start(proc.Child{Name: "kubelet", Args: append([]string{"kubelet"}, n.kubeletArgs()...), Grace: 10 * time.Second})
	return nil
}

// waitKubelet blocks until the kubelet is healthy.
func waitKubelet(ctx context.Context) error {
	deadline := time.Now().Add(kubeletDeadline)
	client := http.Client{Timeout: callTimeout}
	for {
		response, err := client.Get(kubeletHealth)
		if err == nil {
			err = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return err
			}
			err = errors.New(response.Status)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for the kubelet's health timed out after %s: %w", kubeletDeadline, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (n *Node) proxyArgs() []string {
	return argmap.Merge(map[string]string{
		"kubeconfig":                        n.dir("kubeproxy.kubeconfig"),
		"cluster-cidr":                      n.cluster.ClusterCIDR,
		"hostname-override":                 n.Config.NodeName,
		"proxy-mode":                        "iptables",
		"healthz-bind-address":              "127.0.0.1:10256",
		"metrics-bind-address":              "127.0.0.1:10249",
		"conntrack-max-per-core":            "0", // the host's own limit stays
		"conntrack-tcp-timeout-close-wait":  "0s",
		"conntrack-tcp-timeout-established": "0s",
	}, n.Config.ProxyArgs)
}
