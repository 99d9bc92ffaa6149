package images

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// start is what one start of K3s imports from the folder.
func start(t *testing.T, dir string) []string {
	t.Helper()
	folder, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	due, err := folder.Due()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, archive := range due {
		if err := folder.Imported(archive); err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Base(archive))
	}
	return names
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutACacheFileEveryStartImportsEverything(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b.tar.zst", "b")
	write(t, dir, "a.tar", "a")
	write(t, dir, ".busbar-download.0011223344556677", "partial")
	for range 3 {
		if got := start(t, dir); !slices.Equal(got, []string{"a.tar", "b.tar.zst"}) {
			t.Fatalf("got %v", got)
		}
	}
}

func TestWithACacheFileOnlyNewAndChangedArchivesAreImported(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, ".cache.json", "")
	write(t, dir, "a.tar", "a")
	write(t, dir, "b.tar", "b")
	if got := start(t, dir); !slices.Equal(got, []string{"a.tar", "b.tar"}) {
		t.Fatalf("the first start: got %v", got)
	}
	if got := start(t, dir); len(got) > 0 {
		t.Fatalf("the second start: got %v", got)
	}
	write(t, dir, "a.tar", "longer")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "b.tar"), later, later); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "c.tar", "c")
	if got := start(t, dir); !slices.Equal(got, []string{"a.tar", "b.tar", "c.tar"}) {
		t.Errorf("after changes: got %v", got)
	}
}

func TestADamagedCacheFileImportsEverything(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.tar", "a")
	write(t, dir, ".cache.json", "{")
	if got := start(t, dir); !slices.Equal(got, []string{"a.tar"}) {
		t.Errorf("got %v", got)
	}
	if got := start(t, dir); len(got) > 0 {
		t.Errorf("the cache file was not repaired: got %v", got)
	}
}

func TestAMissingFolderHasNoArchives(t *testing.T) {
	if got := start(t, filepath.Join(t.TempDir(), "images")); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}
