package lb

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"
)

// named answers every connection with a name.
func named(t *testing.T, name string) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(conn, name)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String(), func() { _ = listener.Close() }
}

func ask(t *testing.T, b *Balancer) string {
	t.Helper()
	conn, err := net.Dial("tcp", b.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return ""
	}
	return line[:len(line)-1]
}

func TestAnAgentOutlivesTheServerItJoinedThrough(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, stopFirst := named(t, "first")
	other, _ := named(t, "other")
	state := filepath.Join(t.TempDir(), "lb.json")
	b, err := New("https://"+first, 0, state)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = b.Run(ctx) }()
	if got := ask(t, b); got != "first" {
		t.Fatalf("got %q", got)
	}
	if err := b.Update([]string{first, other}); err != nil {
		t.Fatal(err)
	}
	stopFirst()
	if got := ask(t, b); got != "other" {
		t.Errorf("after the first server's death: got %q", got)
	}

	// The same after a restart of the agent, which finds only the dead server in its configuration.
	again, err := New("https://"+first, 0, state)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = again.Run(ctx) }()
	if got := ask(t, again); got != "other" {
		t.Errorf("after a restart: got %q", got)
	}
}

func TestAnEmptyListOfServersIsNotBelieved(t *testing.T) {
	first, _ := named(t, "first")
	b, err := New("https://"+first, 0, filepath.Join(t.TempDir(), "lb.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.listener.Close() }()
	if err := b.Update(nil); err != nil || len(b.servers()) != 1 {
		t.Errorf("got %v, %v", b.servers(), err)
	}
}
