// Package config reads the configuration of `k3s server` and `k3s agent`: config.yaml and its
// drop-ins, K3S_* variables and flags, in K3s's order of precedence.
package config

// Kind is how the value of a flag is read.
type Kind int

// The kinds of value K3s's flags have.
const (
	String Kind = iota
	Bool
	Int
	List      // repeatable; each value is taken whole
	CommaList // repeatable; commas separate values too
)

const (
	onServer = 1 << iota
	onAgent
)

// Flag is one key of config.yaml, which is also `--key` on the command line.
type Flag struct {
	Name    string
	Short   string
	Kind    Kind
	Env     string
	Default string
	on      int
	// ignored: the replacement accepts the key but does nothing with it, and logs a warning
	// when it is set.
	ignored bool
}

const both = onServer | onAgent

// flags is the table of keys, from K3s's docs/cli/server.md and docs/cli/agent.md. Every server
// is an agent as well, so agent keys are server keys.
var flags = []Flag{
	{Name: "config", Short: "c", Env: "K3S_CONFIG_FILE", on: both},
	{Name: "debug", Kind: Bool, Env: "K3S_DEBUG", on: both},
	{Name: "data-dir", Short: "d", Env: "K3S_DATA_DIR", Default: "/var/lib/rancher/k3s", on: both},
	{Name: "token", Short: "t", Env: "K3S_TOKEN", on: both},
	{Name: "token-file", Env: "K3S_TOKEN_FILE", on: both},
	{Name: "server", Short: "s", Env: "K3S_URL", on: both},
	{Name: "node-name", Env: "K3S_NODE_NAME", on: both},
	{Name: "with-node-id", Kind: Bool, on: both, ignored: true},
	{Name: "node-ip", Short: "i", Kind: CommaList, on: both},
	{Name: "node-external-ip", Kind: CommaList, on: both},
	{Name: "node-label", Kind: List, on: both},
	{Name: "node-taint", Kind: List, on: both},
	{Name: "kubelet-arg", Kind: List, on: both},
	{Name: "kube-proxy-arg", Kind: List, on: both},
	{Name: "pause-image", Default: "rancher/mirrored-pause:3.6", on: both},
	{Name: "snapshotter", Default: "overlayfs", on: both},
	{Name: "private-registry", Default: "/etc/rancher/k3s/registries.yaml", on: both},
	{Name: "system-default-registry", on: both},
	{Name: "default-runtime", on: both},
	{Name: "resolv-conf", Env: "K3S_RESOLV_CONF", on: both},
	{Name: "lb-server-port", Kind: Int, Env: "K3S_LB_SERVER_PORT", Default: "6444", on: both},
	{Name: "flannel-iface", on: both},
	{Name: "flannel-conf", on: both, ignored: true},
	{Name: "flannel-cni-conf", on: both, ignored: true},
	{Name: "protect-kernel-defaults", Kind: Bool, on: both},
	{Name: "nonroot-devices", Kind: Bool, on: both, ignored: true},
	{Name: "selinux", Kind: Bool, Env: "K3S_SELINUX", on: both, ignored: true},
	{Name: "prefer-bundled-bin", Kind: Bool, on: both, ignored: true},
	{Name: "image-credential-provider-bin-dir", on: both, ignored: true},
	{Name: "image-credential-provider-config", on: both, ignored: true},
	{Name: "disable-default-registry-endpoint", Kind: Bool, on: both, ignored: true},
	{Name: "airgap-extra-registry", Kind: List, on: both, ignored: true},
	{Name: "container-runtime-endpoint", on: both},
	{Name: "v", Kind: Int, on: both, ignored: true},
	{Name: "vmodule", on: both, ignored: true},
	{Name: "log", Short: "l", on: both, ignored: true},
	{Name: "alsologtostderr", Kind: Bool, on: both, ignored: true},

	{Name: "agent-token", Env: "K3S_AGENT_TOKEN", on: onServer},
	{Name: "agent-token-file", Env: "K3S_AGENT_TOKEN_FILE", on: onServer},
	{Name: "cluster-init", Kind: Bool, Env: "K3S_CLUSTER_INIT", on: onServer},
	{Name: "bind-address", Default: "0.0.0.0", on: onServer},
	{Name: "https-listen-port", Kind: Int, Default: "6443", on: onServer},
	{Name: "advertise-address", on: onServer},
	{Name: "advertise-port", Kind: Int, on: onServer, ignored: true},
	{Name: "tls-san", Kind: CommaList, on: onServer},
	{Name: "tls-san-security", Kind: Bool, Default: "true", on: onServer},
	{Name: "cluster-cidr", Kind: CommaList, Default: "10.42.0.0/16", on: onServer},
	{Name: "service-cidr", Kind: CommaList, Default: "10.43.0.0/16", on: onServer},
	{Name: "service-node-port-range", Default: "30000-32767", on: onServer},
	{Name: "cluster-dns", Kind: CommaList, on: onServer},
	{Name: "cluster-domain", Default: "cluster.local", on: onServer},
	{Name: "flannel-backend", Default: "vxlan", on: onServer},
	{Name: "flannel-ipv6-masq", Kind: Bool, on: onServer, ignored: true},
	{Name: "flannel-external-ip", Kind: Bool, on: onServer, ignored: true},
	{Name: "egress-selector-mode", Default: "agent", on: onServer},
	{Name: "servicelb-namespace", Default: "kube-system", on: onServer, ignored: true},
	{Name: "write-kubeconfig", Short: "o", Env: "K3S_KUBECONFIG_OUTPUT", Default: "/etc/rancher/k3s/k3s.yaml", on: onServer},
	{Name: "write-kubeconfig-mode", Env: "K3S_KUBECONFIG_MODE", Default: "0600", on: onServer},
	{Name: "write-kubeconfig-group", Env: "K3S_KUBECONFIG_GROUP", on: onServer, ignored: true},
	{Name: "helm-job-image", on: onServer, ignored: true},
	{Name: "kube-apiserver-arg", Kind: List, on: onServer},
	{Name: "kube-controller-manager-arg", Kind: List, on: onServer},
	{Name: "kube-scheduler-arg", Kind: List, on: onServer},
	{Name: "kube-cloud-controller-manager-arg", Kind: List, on: onServer, ignored: true},
	{Name: "etcd-arg", Kind: List, on: onServer},
	{Name: "etcd-expose-metrics", Kind: Bool, on: onServer},
	{Name: "etcd-disable-snapshots", Kind: Bool, on: onServer, ignored: true},
	{Name: "etcd-snapshot-name", on: onServer, ignored: true},
	{Name: "etcd-snapshot-schedule-cron", on: onServer, ignored: true},
	{Name: "etcd-snapshot-retention", Kind: Int, on: onServer, ignored: true},
	{Name: "etcd-snapshot-dir", on: onServer, ignored: true},
	{Name: "etcd-snapshot-compress", Kind: Bool, on: onServer, ignored: true},
	{Name: "etcd-snapshot-reconcile-interval", on: onServer, ignored: true},
	{Name: "datastore-endpoint", Env: "K3S_DATASTORE_ENDPOINT", on: onServer},
	{Name: "default-local-storage-path", on: onServer, ignored: true},
	{Name: "disable", Kind: CommaList, on: onServer},
	{Name: "disable-agent", Kind: Bool, on: onServer},
	{Name: "disable-scheduler", Kind: Bool, on: onServer},
	{Name: "disable-cloud-controller", Kind: Bool, on: onServer},
	{Name: "disable-kube-proxy", Kind: Bool, on: onServer},
	{Name: "disable-network-policy", Kind: Bool, on: onServer},
	{Name: "disable-helm-controller", Kind: Bool, on: onServer},
	{Name: "embedded-registry", Kind: Bool, on: onServer},
	{Name: "supervisor-metrics", Kind: Bool, on: onServer, ignored: true},
	{Name: "secrets-encryption", Kind: Bool, on: onServer},
	{Name: "secrets-encryption-provider", Default: "aescbc", on: onServer},
	{Name: "enable-pprof", Kind: Bool, on: onServer, ignored: true},
	{Name: "rootless", Kind: Bool, on: both, ignored: true},
}

func find(name string) (Flag, bool) {
	for _, f := range flags {
		if f.Name == name || (f.Short != "" && f.Short == name) {
			return f, true
		}
	}
	return Flag{}, false
}

func (f Flag) repeatable() bool { return f.Kind == List || f.Kind == CommaList }

func (f Flag) onCommand(command string) bool {
	if command == "agent" {
		return f.on&onAgent != 0
	}
	return f.on&onServer != 0
}
