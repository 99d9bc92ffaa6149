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

// base is for containerd 2. The handler "nvidia" is plain runc: devices come by CDI, which needs no runtime of NVIDIA.
var base = template.Must(template.New("base").Parse(`# Written at each start: put changes into config-v3.toml.tmpl or config-v3.toml.d beside this file.
version = 3
imports = ["{{ .Imports }}"]
root = "{{ .Root }}"
state = "/run/k3s/containerd"

[grpc]
  address = "{{ .Socket }}"

[plugins.'io.containerd.internal.v1.opt']
  path = "{{ .Root }}"

[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "127.0.0.1"
  stream_server_port = "10010"

[plugins.'io.containerd.cri.v1.runtime']
  enable_selinux = false
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{{ .CNIBinDir }}"]
  conf_dir = "{{ .CNIConfDir }}"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "{{ .DefaultRuntime }}"
{{ range .Handlers }}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{ . }}]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{ . }}.options]
  SystemdCgroup = false
{{ end }}
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{{ .Snapshotter }}"
  disable_snapshot_annotations = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{{ .PauseImage }}"
`))

// WriteConfig writes config.toml, from the site's config-v3.toml.tmpl where there is one.
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
	folder := filepath.Dir(r.Config())
	siteFile := filepath.Join(folder, "config-v3.toml.tmpl")
	if site, err := os.ReadFile(siteFile); err == nil {
		name = "site"
		if _, err := tree.New(name).Parse(string(site)); err != nil {
			return fmt.Errorf("%s: %w", siteFile, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var text bytes.Buffer
	if err := tree.ExecuteTemplate(&text, name, map[string]any{
		"Imports": filepath.Join(folder, "config-v3.toml.d", "*.toml"),
		"Root":    r.root(), "Socket": Socket, "PauseImage": r.PauseImage, "CNIBinDir": r.CNIBinDir,
		"CNIConfDir": r.CNIConfDir, "Snapshotter": r.Snapshotter, "DefaultRuntime": runtime,
		"Handlers": []string{"runc", "nvidia"},
	}); err != nil {
		return err
	}
	return pki.WriteFile(r.Config(), text.Bytes(), 0o600)
}
