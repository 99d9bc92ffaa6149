// Package images chooses the image archives that a start imports.
package images

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

// cacheFile opts into imports of changed archives only (k3s-io/docs installation/airgap.md, conditional image
// imports; K3s from 1.31.9, 1.32.5 and 1.33.1). An empty file is enough.
const cacheFile = ".cache.json"

// Folder is an images folder at one start.
type Folder struct {
	archives []string
	seen     map[string]mark
	path     string // of the cache file, or "" without one
}

type mark struct {
	Size  int64 `json:"size"`
	MTime int64 `json:"modTime"`
}

// Read lists a folder; one that does not exist has no archives.
func Read(dir string) (*Folder, error) {
	folder := &Folder{seen: map[string]mark{}}
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		switch {
		case info.IsDir():
		case entry.Name() == cacheFile:
			folder.path = path
		case isArchive(entry.Name()):
			folder.archives = append(folder.archives, path)
		}
	}
	if folder.path == "" {
		return folder, nil
	}
	raw, err := os.ReadFile(folder.path)
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &folder.seen); err != nil {
			logx.Warnf("%s is damaged, importing all archives again: %v", folder.path, err)
			folder.seen = map[string]mark{}
		}
	}
	return folder, nil
}

// Due are the archives to import, in the order of their names.
func (f *Folder) Due() ([]string, error) {
	var due []string
	for _, archive := range f.archives {
		now, err := markOf(archive)
		if err != nil {
			return nil, err
		}
		if f.seen[archive] != now {
			due = append(due, archive)
		}
	}
	return due, nil
}

// Imported records an archive for later starts, if the folder has a cache file.
func (f *Folder) Imported(archive string) error {
	if f.path == "" {
		return nil
	}
	now, err := markOf(archive)
	if err != nil {
		return err
	}
	f.seen[archive] = now
	raw, err := json.Marshal(f.seen)
	if err != nil {
		return err
	}
	return pki.WriteFile(f.path, raw, 0o644)
}

func markOf(path string) (mark, error) {
	info, err := os.Stat(path)
	if err != nil {
		return mark{}, err
	}
	return mark{info.Size(), info.ModTime().UnixNano()}, nil
}

func isArchive(name string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
