package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// parse writes files below a fresh folder ("config.yaml" and drop-ins) and parses with flags.
func parse(t *testing.T, command string, files map[string]string, env map[string]string, args ...string) (*Config, []string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Lookup = func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	}
	t.Cleanup(func() { Lookup = os.LookupEnv })
	return Parse(command, append([]string{"--config", filepath.Join(dir, "config.yaml")}, args...))
}

func mustParse(t *testing.T, command string, files, env map[string]string, args ...string) *Config {
	t.Helper()
	c, _, err := parse(t, command, files, env, args...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDropInsComeAfterTheFileAndTheLastWins(t *testing.T) {
	c := mustParse(t, "server", map[string]string{
		"config.yaml":              "node-name: one\ncluster-init: true\n",
		"config.yaml.d/20-b.yaml":  "node-name: three\n",
		"config.yaml.d/10-a.yaml":  "node-name: two\n",
		"config.yaml.d/readme.txt": "node-name: no\n",
	}, nil)
	if c.NodeName != "three" || !c.ClusterInit {
		t.Errorf("got node %q, cluster-init %v", c.NodeName, c.ClusterInit)
	}
}

func TestAPlusAppendsToTheList(t *testing.T) {
	c := mustParse(t, "server", map[string]string{
		"config.yaml":            "tls-san: [a, b]\nkube-apiserver-arg: [v=1]\n",
		"config.yaml.d/one.yaml": "tls-san+: [c]\nkube-apiserver-arg: [v=2]\n",
	}, nil)
	if !reflect.DeepEqual(c.TLSSans, []string{"a", "b", "c"}) || !reflect.DeepEqual(c.APIServerArgs, []string{"v=2"}) {
		t.Errorf("got %v and %v", c.TLSSans, c.APIServerArgs)
	}
}

func TestFlagsBeatVariablesAndVariablesBeatTheFile(t *testing.T) {
	files := map[string]string{"config.yaml": "token: file\nnode-name: file\ntls-san: [file]\nserver: https://file:6443\n"}
	env := map[string]string{"K3S_TOKEN": "env", "K3S_NODE_NAME": "env"}
	c := mustParse(t, "server", files, env, "--node-name=flag", "--tls-san", "flag")
	got := []string{c.Token, c.NodeName, c.ServerURL, strings.Join(c.TLSSans, ",")}
	if want := []string{"env", "flag", "https://file:6443", "flag"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestListsSplitAtCommasOnlyWhereK3sDoes(t *testing.T) {
	c := mustParse(t, "server", map[string]string{
		"config.yaml": "tls-san: a,b\nkubelet-arg: feature-gates=A=true,B=true\n",
	}, nil)
	if len(c.TLSSans) != 2 || len(c.KubeletArgs) != 1 {
		t.Errorf("got %v and %v", c.TLSSans, c.KubeletArgs)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for name, given := range map[string]struct{ command, file, want string }{
		"unknown key":        {"server", "clusterinit: true\n", `unknown key "clusterinit"`},
		"unquoted mode":      {"server", "write-kubeconfig-mode: 0600\n", "write-kubeconfig-mode"},
		"not a switch":       {"server", "cluster-init: maybe\n", "cluster-init"},
		"two for one":        {"server", "node-name: [a, b]\n", "node-name: takes one value, got 2"},
		"mapping":            {"server", "tls-san: {a: b}\n", "tls-san"},
		"bad network":        {"server", "cluster-cidr: 10.42.0.0\n", "cluster-cidr"},
		"bad backend":        {"server", "flannel-backend: calico\n", "flannel-backend"},
		"join and begin":     {"server", "server: https://a:6443\ncluster-init: true\n", "--cluster-init"},
		"no server":          {"agent", "token: x\n", "--server is required"},
		"no token":           {"agent", "server: https://a:6443\n", "--token is required"},
		"plain http":         {"agent", "server: http://a:6443\ntoken: x\n", "only https:// URLs"},
		"other datastore":    {"server", "datastore-endpoint: mysql://x\n", "--datastore-endpoint is not supported"},
		"missing token file": {"agent", "server: https://a:6443\ntoken-file: /nowhere\n", "token-file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := parse(t, given.command, map[string]string{"config.yaml": given.file}, nil)
			if err == nil || !strings.Contains(err.Error(), given.want) {
				t.Errorf("got %v, want %q in it", err, given.want)
			}
		})
	}
}

func TestAServersKeyIsSkippedOnAnAgentWithAWarning(t *testing.T) {
	_, warnings, err := parse(t, "agent", map[string]string{
		"config.yaml": "server: https://a:6443\ntoken: x\ncluster-init: true\n",
	}, nil)
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "--cluster-init") {
		t.Errorf("got %v and warnings %q", err, warnings)
	}
}

func TestTheDNSAddressIsTheTenthOfTheServiceNetwork(t *testing.T) {
	for cidr, want := range map[string]string{"10.43.0.0/16": "10.43.0.10", "172.20.4.0/22": "172.20.4.10"} {
		if c := mustParse(t, "server", map[string]string{"config.yaml": "service-cidr: " + cidr + "\n"}, nil); c.ClusterDNS != want {
			t.Errorf("%s: got %s, want %s", cidr, c.ClusterDNS, want)
		}
	}
}

func TestServersMustAgreeOnCriticalKeysInAnyOrder(t *testing.T) {
	here := mustParse(t, "server", map[string]string{"config.yaml": "disable: [traefik, servicelb]\n"}, nil)
	same := mustParse(t, "server", map[string]string{"config.yaml": "disable: servicelb,traefik\ntls-san: [x]\n"}, nil)
	other := mustParse(t, "server", map[string]string{"config.yaml": "disable: [traefik]\nsecrets-encryption: true\n"}, nil)
	if err := here.CompareCritical(same.Critical()); err != nil {
		t.Error(err)
	}
	err := here.CompareCritical(other.Critical())
	if err == nil || !strings.Contains(err.Error(), "critical configuration value mismatch") ||
		!strings.Contains(err.Error(), "disable") || !strings.Contains(err.Error(), "secrets-encryption") {
		t.Errorf("got %v", err)
	}
}
