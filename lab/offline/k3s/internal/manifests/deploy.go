// Package manifests deploys the packaged manifests and the files in server/manifests.
package manifests

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

//go:embed *.yaml
var packaged embed.FS

// Values fill the packaged manifests.
type Values struct {
	ClusterDNS    string
	ClusterDomain string
	Registry      string // "registry.example/" or ""
}

const (
	rescan   = 15 * time.Second
	retry    = 2 * time.Second
	fieldMgr = "deploy@k3s"
)

// WritePackaged writes the manifests that are not disabled to <data-dir>/server/manifests, where they
// can be inspected.
func WritePackaged(serverDir string, values Values, disabled map[string]bool) error {
	entries, err := packaged.ReadDir(".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		target := filepath.Join(serverDir, "manifests", entry.Name())
		if disabled[strings.TrimSuffix(entry.Name(), ".yaml")] {
			if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			continue
		}
		text, err := template.ParseFS(packaged, entry.Name())
		if err != nil {
			return err
		}
		var rendered bytes.Buffer
		if err := text.Execute(&rendered, values); err != nil {
			return err
		}
		if err := pki.WriteFile(target, rendered.Bytes(), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Deploy applies every manifest in dir, and again whenever a file changes, until ctx ends.
func Deploy(ctx context.Context, config *rest.Config, dir string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	applied := map[string]string{}
	for {
		pause := rescan
		files, err := filepath.Glob(filepath.Join(dir, "*.y*ml"))
		if err != nil {
			return err
		}
		sort.Strings(files)
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				continue // removed since the listing
			}
			mark := fmt.Sprint(info.Size(), info.ModTime())
			if applied[file] == mark {
				continue
			}
			if err := applyFile(ctx, client, mapper, file); err != nil {
				logx.Errorf("Failed to process config: failed to process %s: %v", file, err)
				mapper.Reset()
				pause = retry
				continue
			}
			logx.Debugf("Applied manifest %s", file)
			applied[file] = mark
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func applyFile(ctx context.Context, client dynamic.Interface, mapper *restmapper.DeferredDiscoveryRESTMapper, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := apply(ctx, client, mapper, object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func apply(ctx context.Context, client dynamic.Interface, mapper *restmapper.DeferredDiscoveryRESTMapper, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == "namespace" {
		namespace := object.GetNamespace()
		if namespace == "" {
			namespace = "default"
		}
		target = client.Resource(mapping.Resource).Namespace(namespace)
	}
	_, err = target.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldMgr, Force: true})
	return err
}
