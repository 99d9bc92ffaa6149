package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// table is where exportfs keeps what is exported, as nfs-utils does; the server reads it for every request.
const table = "/var/lib/nfs/etab"

var client = regexp.MustCompile(`^([^()\s]+)\(([^()\s]*)\)$`)

// export is one folder for one client.
type export struct {
	folder, client, options string
}

// reexport writes the exports of the files to the table. A client that is not an address is an error: the product
// writes addresses, and what a name stands for is the real exportfs's part.
func reexport(file, folder, table string) error {
	files := []string{file}
	more, err := filepath.Glob(filepath.Join(folder, "*.exports"))
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, each := range append(files, more...) {
		found, err := read(each)
		if err != nil {
			return err
		}
		for _, one := range found {
			if _, err := netip.ParseAddr(one.client); err != nil {
				return fmt.Errorf("%s: %s: %w", each, one.client, err)
			}
			fmt.Fprintf(&lines, "%s %s(%s)\n", one.folder, one.client, one.options)
		}
	}
	fresh := table + ".new"
	if err := os.WriteFile(fresh, []byte(lines.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, table)
}

// read returns the exports of a file of exports(5), without continued lines and default options; none if it is missing.
func read(file string) ([]export, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []export
	for number, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(strings.SplitN(line, "#", 2)[0])
		if len(words) == 0 {
			continue
		}
		if len(words) < 2 || !filepath.IsAbs(words[0]) {
			return nil, fmt.Errorf("%s:%d: %q: FOLDER CLIENT(OPTIONS) is expected", file, number+1, line)
		}
		for _, word := range words[1:] {
			match := client.FindStringSubmatch(word)
			if match == nil {
				return nil, fmt.Errorf("%s:%d: %q: CLIENT(OPTIONS) is expected", file, number+1, word)
			}
			found = append(found, export{words[0], match[1], match[2]})
		}
	}
	return found, nil
}

func show(out io.Writer, table string) error {
	found, err := read(table)
	for _, one := range found {
		fmt.Fprintf(out, "%s  %s(%s)\n", one.folder, one.client, one.options)
	}
	return err
}

// exported says whether a folder is exported to an address; an empty folder stands for any.
func exported(table, folder string, address netip.Addr) bool {
	found, err := read(table)
	if err != nil {
		return false
	}
	for _, one := range found {
		listed, err := netip.ParseAddr(one.client)
		if err == nil && listed == address.Unmap() && (folder == "" || folder == one.folder) {
			return true
		}
	}
	return false
}
