package config

import (
	"fmt"
	"os"
	"strings"
)

// readArgs reads command-line flags: --key value, --key=value, -k value. A switch needs no value.
func readArgs(command string, args []string) (values, error) {
	got := values{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") {
			return nil, fmt.Errorf("unexpected argument %q to `k3s %s`", arg, command)
		}
		name, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag, known := find(name)
		if !known || !flag.onCommand(command) {
			return nil, fmt.Errorf("flag provided but not defined: -%s", name)
		}
		switch {
		case hasValue:
		case flag.Kind == Bool:
			value = "true"
		case i+1 < len(args):
			i++
			value = args[i]
		default:
			return nil, fmt.Errorf("flag needs an argument: -%s", name)
		}
		if flag.repeatable() {
			got[flag.Name] = append(got[flag.Name], value)
		} else {
			got[flag.Name] = []string{value}
		}
	}
	return got, nil
}

// readEnv reads the K3S_* variables that have a flag.
func readEnv(lookup func(string) (string, bool)) values {
	got := values{}
	for _, flag := range flags {
		if flag.Env == "" {
			continue
		}
		if value, set := lookup(flag.Env); set && value != "" {
			got[flag.Name] = []string{value}
		}
	}
	return got
}

// gather merges all sources. Flags beat variables, variables beat files, files beat defaults; a
// list given by a stronger source replaces the weaker list as a whole, as K3s's docs say.
func gather(command string, args []string, lookup func(string) (string, bool)) (values, []string, error) {
	fromArgs, err := readArgs(command, args)
	if err != nil {
		return nil, nil, err
	}
	fromEnv := readEnv(lookup)
	path, asked := DefaultFile, false
	for _, source := range []values{fromEnv, fromArgs} {
		if named := source["config"]; len(named) > 0 {
			path, asked = named[0], true
		}
	}
	fromFiles, err := readFiles(path, asked)
	if err != nil {
		return nil, nil, err
	}
	var warnings []string
	all := values{}
	for _, flag := range flags {
		if flag.Default != "" {
			all[flag.Name] = []string{flag.Default}
		}
		for _, source := range []values{fromFiles, fromEnv, fromArgs} {
			value, set := source[flag.Name]
			if !set {
				continue
			}
			if !flag.onCommand(command) {
				if fromFiles[flag.Name] != nil {
					warnings = append(warnings, fmt.Sprintf("Unknown flag --%s found in config.yaml, skipping", flag.Name))
				}
				continue
			}
			all[flag.Name] = value
			if flag.ignored && flag.Name != "config" {
				warnings = append(warnings, fmt.Sprintf("--%s is accepted but has no effect in this replacement", flag.Name))
			}
		}
	}
	return all, warnings, nil
}

// Lookup is os.LookupEnv; tests pass their own.
var Lookup = os.LookupEnv
