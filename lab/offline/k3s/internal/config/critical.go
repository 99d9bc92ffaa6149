package config

import (
	"fmt"
	"sort"
	"strings"
)

// criticalKeys must be the same on every server (facts: K3s docs/cli/server.md).
var criticalKeys = []string{
	"cluster-cidr", "service-cidr", "cluster-dns", "cluster-domain", "disable", "disable-cloud-controller",
	"disable-helm-controller", "disable-network-policy", "disable-kube-proxy", "egress-selector-mode",
	"embedded-registry", "flannel-backend", "flannel-external-ip", "flannel-ipv6-masq",
	"secrets-encryption", "secrets-encryption-provider",
}

func criticalValues(all values, c *Config) map[string]string {
	r := reader{values: all}
	out := map[string]string{}
	for _, key := range criticalKeys {
		flag, _ := find(key)
		switch {
		case key == "cluster-dns":
			out[key] = c.ClusterDNS
		case flag.Kind == Bool:
			out[key] = fmt.Sprint(r.bool(key))
		case flag.repeatable():
			list := r.list(key)
			sort.Strings(list)
			out[key] = strings.Join(list, ",")
		default:
			out[key] = r.text(key)
		}
	}
	return out
}

// Critical returns the values that all servers of a cluster must share, by key.
func (c *Config) Critical() map[string]string { return c.critical }

// CompareCritical returns K3s's error message when this server's values differ from those of
// the server it joins; the keys that differ are named.
func (c *Config) CompareCritical(theirs map[string]string) error {
	var differ []string
	for _, key := range criticalKeys {
		if c.critical[key] != theirs[key] {
			differ = append(differ, fmt.Sprintf("%s: %q here, %q there", key, c.critical[key], theirs[key]))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return fmt.Errorf("critical configuration value mismatch between servers: %s", strings.Join(differ, "; "))
}
