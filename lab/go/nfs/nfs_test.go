package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestExportsOfAllFilesAreShown(t *testing.T) {
	folder := t.TempDir()
	write(t, filepath.Join(folder, "exports"), "# none\n/home 10.0.0.1(ro)\n")
	write(t, filepath.Join(folder, "a.exports"), "/srv 10.0.0.2(rw,sync) 10.0.0.3(rw)\n")
	table := filepath.Join(folder, "etab")
	if err := reexport(filepath.Join(folder, "exports"), folder, table); err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	if err := show(&shown, table); err != nil {
		t.Fatal(err)
	}
	expected := "/home  10.0.0.1(ro)\n/srv  10.0.0.2(rw,sync)\n/srv  10.0.0.3(rw)\n"
	if shown.String() != expected {
		t.Errorf("got %q, expected %q", shown.String(), expected)
	}
}

func TestAFileThatIsWrongChangesNothing(t *testing.T) {
	for _, text := range []string{"/srv\n", "srv 10.0.0.2(rw)\n", "/srv *(rw)\n", "/srv 10.0.0.2\n"} {
		folder := t.TempDir()
		table := filepath.Join(folder, "etab")
		write(t, table, "/old 10.0.0.1(rw)\n")
		write(t, filepath.Join(folder, "a.exports"), text)
		if err := reexport(filepath.Join(folder, "exports"), folder, table); err == nil {
			t.Errorf("%q: no error", text)
		}
		if kept, _ := os.ReadFile(table); string(kept) != "/old 10.0.0.1(rw)\n" {
			t.Errorf("%q: the table is %q", text, kept)
		}
	}
}
