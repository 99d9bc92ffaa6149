package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// Config is the configuration of one server or agent, checked and typed.
type Config struct {
	Command string // "server" or "agent"
	Debug   bool
	DataDir string

	Token, AgentToken string // as given: short or K10…; empty if not given
	ServerURL         string
	ClusterInit       bool

	NodeName       string
	NodeIP         string // empty: found from the default route
	NodeExternalIP string
	NodeLabels     []string
	NodeTaints     []string

	BindAddress      string
	Port             int
	AdvertiseAddress string
	TLSSans          []string
	ClusterCIDR      string
	ServiceCIDR      string
	NodePortRange    string
	ClusterDNS       string
	ClusterDomain    string
	FlannelBackend   string
	FlannelIface     string // empty: that of the default route

	KubeconfigPath string
	KubeconfigMode os.FileMode

	APIServerArgs, ControllerArgs, SchedulerArgs, EtcdArgs, KubeletArgs, ProxyArgs []string

	EtcdMetricsOpen bool

	Disable           map[string]bool
	DisableAgent      bool
	DisableScheduler  bool
	DisableProxy      bool
	SecretsEncryption bool

	PauseImage     string
	Snapshotter    string
	DefaultRuntime string
	ResolvConf     string
	SystemRegistry string
	LBPort         int
	ProtectKernel  bool

	critical map[string]string
}

// Parse reads the whole configuration of `k3s <command> <args>`. Warnings are for the log.
func Parse(command string, args []string) (*Config, []string, error) {
	all, warnings, err := gather(command, args, Lookup)
	if err != nil {
		return nil, nil, err
	}
	r := reader{values: all}
	c := &Config{
		Command: command, Debug: r.bool("debug"), DataDir: r.text("data-dir"),
		ServerURL: strings.TrimRight(r.text("server"), "/"), ClusterInit: r.bool("cluster-init"),
		NodeName: r.text("node-name"), NodeIP: r.first("node-ip"), NodeExternalIP: r.first("node-external-ip"),
		NodeLabels: r.list("node-label"), NodeTaints: r.list("node-taint"),
		BindAddress: r.text("bind-address"), Port: r.int("https-listen-port"),
		AdvertiseAddress: r.text("advertise-address"), TLSSans: r.list("tls-san"),
		ClusterCIDR: r.first("cluster-cidr"), ServiceCIDR: r.first("service-cidr"),
		NodePortRange: r.text("service-node-port-range"), ClusterDNS: r.first("cluster-dns"),
		ClusterDomain: r.text("cluster-domain"), FlannelBackend: r.text("flannel-backend"),
		FlannelIface:   r.text("flannel-iface"),
		KubeconfigPath: r.text("write-kubeconfig"), KubeconfigMode: r.mode("write-kubeconfig-mode"),
		APIServerArgs: r.list("kube-apiserver-arg"), ControllerArgs: r.list("kube-controller-manager-arg"),
		SchedulerArgs: r.list("kube-scheduler-arg"), EtcdArgs: r.list("etcd-arg"),
		KubeletArgs: r.list("kubelet-arg"), ProxyArgs: r.list("kube-proxy-arg"),
		EtcdMetricsOpen: r.bool("etcd-expose-metrics"),
		Disable:         map[string]bool{}, DisableAgent: r.bool("disable-agent"),
		DisableScheduler: r.bool("disable-scheduler"), DisableProxy: r.bool("disable-kube-proxy"),
		SecretsEncryption: r.bool("secrets-encryption"),
		PauseImage:        r.text("pause-image"), Snapshotter: r.text("snapshotter"),
		DefaultRuntime: r.text("default-runtime"), ResolvConf: r.text("resolv-conf"),
		SystemRegistry: r.text("system-default-registry"), LBPort: r.int("lb-server-port"),
		ProtectKernel: r.bool("protect-kernel-defaults"),
	}
	c.Token = r.secret("token", "token-file")
	c.AgentToken = r.secret("agent-token", "agent-token-file")
	for _, item := range r.list("disable") {
		c.Disable[item] = true
	}
	for _, absent := range []string{"datastore-endpoint", "container-runtime-endpoint"} {
		if r.text(absent) != "" {
			r.fail("--%s is not supported by this replacement", absent)
		}
	}
	if err := errors.Join(append(r.errs, c.check()...)...); err != nil {
		return nil, warnings, err
	}
	c.critical = criticalValues(all, c)
	return c, warnings, nil
}

// check finds values that cannot work and fills those that follow from others.
func (c *Config) check() (errs []error) {
	if c.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			errs = append(errs, err)
		}
		c.NodeName = strings.ToLower(name)
	}
	for key, cidr := range map[string]string{"cluster-cidr": c.ClusterCIDR, "service-cidr": c.ServiceCIDR} {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if c.ClusterDNS == "" {
		if prefix, err := netip.ParsePrefix(c.ServiceCIDR); err == nil {
			address := prefix.Masked().Addr()
			for range 10 { // the tenth address of the service network, as K3s takes it
				address = address.Next()
			}
			c.ClusterDNS = address.String()
		}
	}
	for key, ip := range map[string]string{"node-ip": c.NodeIP, "cluster-dns": c.ClusterDNS, "advertise-address": c.AdvertiseAddress} {
		if _, err := netip.ParseAddr(ip); ip != "" && err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	switch c.FlannelBackend {
	case "none", "vxlan", "host-gw", "wireguard-native":
	default:
		errs = append(errs, fmt.Errorf("flannel-backend: got %q, want none, vxlan, host-gw or wireguard-native", c.FlannelBackend))
	}
	if c.ServerURL != "" && !strings.HasPrefix(c.ServerURL, "https://") {
		errs = append(errs, fmt.Errorf("only https:// URLs are supported, invalid scheme: %s", c.ServerURL))
	}
	if c.Command == "agent" && c.ServerURL == "" {
		errs = append(errs, errors.New("--server is required"))
	}
	if c.Command == "agent" && c.Token == "" {
		errs = append(errs, errors.New("--token is required"))
	}
	if c.ServerURL != "" && c.ClusterInit {
		errs = append(errs, errors.New("invalid flag use; --server cannot be used with --cluster-init"))
	}
	return errs
}
