package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"go.yaml.in/yaml/v2"
)

// DefaultFile is where K3s looks for its configuration; `config.yaml.d/*.yaml` lies beside it.
const DefaultFile = "/etc/rancher/k3s/config.yaml"

// values holds what a source says: one string for a scalar, several for a list.
type values map[string][]string

// readFiles reads the configuration file and then its drop-ins in alphabetical order. The last
// file that names a key wins; `key+` adds to what came before. A missing file is an error only
// when it was asked for by name.
func readFiles(path string, asked bool) (values, error) {
	merged := values{}
	files := []string{path}
	for _, pattern := range []string{"*.yaml", "*.yml"} {
		dropIns, err := filepath.Glob(filepath.Join(path+".d", pattern))
		if err != nil {
			return nil, err
		}
		sort.Strings(dropIns)
		files = append(files, dropIns...)
	}
	sort.Strings(files[1:])
	for i, file := range files {
		raw, err := os.ReadFile(file)
		if i == 0 && !asked && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := mergeFile(merged, file, raw); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

func mergeFile(merged values, file string, raw []byte) error {
	var document yaml.MapSlice
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return fmt.Errorf("%s: not a YAML mapping: %w", file, err)
	}
	for _, item := range document {
		key := fmt.Sprint(item.Key)
		name, appends := strings.CutSuffix(key, "+")
		flag, known := find(name)
		if !known {
			return fmt.Errorf("%s: unknown key %q: it is a flag of neither `k3s server` nor `k3s agent`", file, name)
		}
		list, err := texts(item.Value)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, key, err)
		}
		if len(list) != 1 && !flag.repeatable() {
			return fmt.Errorf("%s: %s: takes one value, got %d", file, key, len(list))
		}
		if appends {
			merged[flag.Name] = append(merged[flag.Name], list...)
		} else {
			merged[flag.Name] = list
		}
	}
	return nil
}

// texts turns a YAML value into the strings that would stand on the command line.
func texts(value any) ([]string, error) {
	switch v := value.(type) {
	case nil:
		return []string{""}, nil
	case []any:
		list := make([]string, 0, len(v))
		for _, item := range v {
			one, err := texts(item)
			if err != nil {
				return nil, err
			}
			list = append(list, one...)
		}
		return list, nil
	case yaml.MapSlice:
		return nil, errors.New("takes text or a list of texts, got a mapping")
	default:
		return []string{fmt.Sprint(v)}, nil
	}
}
