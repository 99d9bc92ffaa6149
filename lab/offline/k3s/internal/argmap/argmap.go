// Package argmap merges a component's default flags with those a site adds (kube-apiserver-arg,
// kubelet-arg, …).
package argmap

import (
	"sort"
	"strings"
)

// Merge renders --key=value flags: a site's value of a key replaces the default; `key+=value`
// adds to a comma-separated default; a key without a value is a switch that is on.
func Merge(defaults map[string]string, extras []string) []string {
	merged := map[string][]string{}
	for key, value := range defaults {
		merged[key] = []string{value}
	}
	seen := map[string]bool{}
	for _, extra := range extras {
		key, value, hasValue := strings.Cut(strings.TrimLeft(extra, "-"), "=")
		if !hasValue {
			value = "true"
		}
		if name, appends := strings.CutSuffix(key, "+"); appends {
			if old := merged[name]; len(old) > 0 {
				value = old[len(old)-1] + "," + value
			}
			merged[name] = []string{value}
			continue
		}
		if !seen[key] {
			merged[key] = nil
			seen[key] = true
		}
		merged[key] = append(merged[key], value)
	}
	keys := make([]string, 0, len(merged))
	for key := range merged {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var flags []string
	for _, key := range keys {
		for _, value := range merged[key] {
			flags = append(flags, "--"+key+"="+value)
		}
	}
	return flags
}

// Has reports whether a site's flags name a key.
func Has(extras []string, key string) bool {
	for _, extra := range extras {
		name, _, _ := strings.Cut(strings.TrimLeft(extra, "-"), "=")
		if strings.TrimSuffix(name, "+") == key {
			return true
		}
	}
	return false
}
