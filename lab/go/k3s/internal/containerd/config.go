// Package containerd runs the host's containerd with its configuration and socket at K3s's paths,
// and imports the image archives.
package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

// Socket is where K3s's containerd listens.
const Socket = "/run/k3s/containerd/containerd.sock"

// Runtime is one node's containerd.
type Runtime struct {
	AgentDir       string // <data-dir>/agent
	CNIBinDir      string
	CNIConfDir     string
	PauseImage     string
	Snapshotter    string
	DefaultRuntime string
}

// Config is the path of the generated configuration.
func (r Runtime) Config() string {
	return filepath.Join(r.AgentDir, "etc", "containerd", "config.toml")
}

func (r Runtime) root() string { return filepath.Join(r.AgentDir, "containerd") }

// base is for containerd 1.x (Debian's). The handler "nvidia" is plain runc: the lab has no GPU
// runtime, and pods with runtimeClassName nvidia must run.
var base = template.Must(template.New("base").Parse(`# Written at each start: put changes into config.toml.tmpl beside this file.
version = 2
root = "{{ .Root }}"
state = "/run/k3s/containerd"

[grpc]
  address = "{{ .Socket }}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{{ .Root }}"

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "10010"
  enable_selinux = false
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  restrict_oom_score_adj = true
  sandbox_image = "{{ .PauseImage }}"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{{ .CNIBinDir }}"
  conf_dir = "{{ .CNIConfDir }}"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{{ .Snapshotter }}"
  disable_snapshot_annotations = true
  default_runtime_name = "{{ .DefaultRuntime }}"
{{ range .Handlers }}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{{ . }}]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{{ . }}.options]
  SystemdCgroup = false
{{ end -}}
`))

// WriteConfig writes config.toml, from the site's config.toml.tmpl where there is one.
func (r Runtime) WriteConfig() error {
	runtime := r.DefaultRuntime
	if runtime == "" {
		runtime = "runc"
	}
	tree, err := base.Clone()
	if err != nil {
		return err
	}
	tree.Funcs(template.FuncMap{"printf": fmt.Sprintf})
	name := "base"
	siteFile := filepath.Join(filepath.Dir(r.Config()), "config.toml.tmpl")
	if site, err := os.ReadFile(siteFile); err == nil {
		name = "site"
		if _, err := tree.New(name).Parse(string(site)); err != nil {
			return fmt.Errorf("%s: %w", siteFile, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(r.Config()), "config-v3.toml.tmpl")); err == nil {
		logx.Infof("config-v3.toml.tmpl is for containerd 2 and is not used with the host's containerd 1")
	}
	var text bytes.Buffer
	if err := tree.ExecuteTemplate(&text, name, map[string]any{
		"Root": r.root(), "Socket": Socket, "PauseImage": r.PauseImage, "CNIBinDir": r.CNIBinDir,
		"CNIConfDir": r.CNIConfDir, "Snapshotter": r.Snapshotter, "DefaultRuntime": runtime,
		"Handlers": []string{"runc", "nvidia"},
	}); err != nil {
		return err
	}
	return pki.WriteFile(r.Config(), text.Bytes(), 0o600)
}
