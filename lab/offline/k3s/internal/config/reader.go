package config

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// reader types the texts of a source and collects every error on the way.
type reader struct {
	values values
	errs   []error
}

func (r *reader) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *reader) text(name string) string {
	if list := r.values[name]; len(list) > 0 {
		return list[len(list)-1]
	}
	return ""
}

func (r *reader) bool(name string) bool {
	text := r.text(name)
	if text == "" {
		// `cluster-init:` without a value is a switch that is on.
		return len(r.values[name]) > 0
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		r.fail("%s: got %q, want true or false", name, text)
	}
	return value
}

func (r *reader) int(name string) int {
	text := r.text(name)
	if text == "" {
		return 0
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		r.fail("%s: got %q, want a whole number", name, text)
	}
	return value
}

func (r *reader) mode(name string) os.FileMode {
	value, err := strconv.ParseUint(r.text(name), 8, 12)
	if err != nil {
		r.fail("%s: got %q, want an octal mode in quotes, such as \"0600\"", name, r.text(name))
	}
	return os.FileMode(value)
}

func (r *reader) list(name string) []string {
	flag, _ := find(name)
	var out []string
	for _, item := range r.values[name] {
		parts := []string{item}
		if flag.Kind == CommaList {
			parts = strings.Split(item, ",")
		}
		for _, part := range parts {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

func (r *reader) first(name string) string {
	if list := r.list(name); len(list) > 0 {
		return list[0]
	}
	return ""
}

// secret takes a value or the content of the file that holds it.
func (r *reader) secret(name, fileName string) string {
	if value := strings.TrimSpace(r.text(name)); value != "" {
		return value
	}
	path := r.text(fileName)
	if path == "" {
		return ""
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		r.fail("%s: %w", fileName, err)
	}
	return strings.TrimSpace(string(raw))
}
