package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	client3 "github.com/willscott/go-nfs-client/nfs"
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

// running is a server of a folder on a free port of the loopback interface.
func running(t *testing.T) (folder, table string, port int) {
	t.Helper()
	folder, table = t.TempDir(), filepath.Join(t.TempDir(), "etab")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go serveOn(listener, table)
	return folder, table, listener.Addr().(*net.TCPAddr).Port
}

func TestAListedAddressWritesAndReads(t *testing.T) {
	folder, table, port := running(t)
	write(t, table, folder+" 127.0.0.1(rw)\n")
	content := strings.Repeat("checkpoint ", 100_000)
	err := mounted("127.0.0.1", port, folder, func(target *client3.Target) error {
		file, err := target.OpenFile("/step-1", 0o644)
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, strings.NewReader(content)); err != nil {
			return err
		}
		return file.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := os.ReadFile(filepath.Join(folder, "step-1")); string(found) != content {
		t.Errorf("%d bytes were written, expected %d", len(found), len(content))
	}
	var read bytes.Buffer
	err = mounted("127.0.0.1", port, folder, func(target *client3.Target) error {
		file, err := target.Open("/step-1")
		if err != nil {
			return err
		}
		_, err = io.Copy(&read, file)
		return err
	})
	if err != nil || read.String() != content {
		t.Errorf("%d bytes were read, expected %d: %v", read.Len(), len(content), err)
	}
}

func TestAnotherAddressAndAnotherFolderAreRefused(t *testing.T) {
	folder, table, port := running(t)
	for _, listed := range []string{folder + " 10.0.0.1(rw)\n", "/other 127.0.0.1(rw)\n", ""} {
		write(t, table, listed)
		err := mounted("127.0.0.1", port, folder, func(*client3.Target) error { return nil })
		if err == nil {
			t.Errorf("mounted with %q", listed)
		}
	}
}

func TestAConnectionEndsWithTheExport(t *testing.T) {
	table := filepath.Join(t.TempDir(), "etab")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	for _, each := range []struct {
		listed   string
		expected error
	}{{"/srv 127.0.0.1(rw)\n", nil}, {"/srv 10.0.0.1(rw)\n", errRevoked}} {
		write(t, table, each.listed)
		if _, err := client.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		if _, err := (connection{accepted, table}).Read(make([]byte, 7)); err != each.expected {
			t.Errorf("%q: got %v, expected %v", each.listed, err, each.expected)
		}
	}
}
