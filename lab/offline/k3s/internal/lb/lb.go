// Package lb is the agent's client-side load balancer: a TCP proxy on the loopback over all
// servers it knows, so that an agent survives the loss of the server it joined through.
package lb

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

const (
	dialTimeout = 3 * time.Second
	checkEvery  = 5 * time.Second
	maxMisses   = 2
)

// Balancer forwards connections to the first server that takes them.
type Balancer struct {
	stateFile string
	listener  net.Listener
	mu        sync.Mutex
	first     string
	state     state
	open      map[string]map[net.Conn]bool // connections by the server they go to
}

// state is kept on disk (in K3s's file and format), for a restart while the first server is gone.
type state struct {
	ServerURL       string   `json:"ServerURL"`
	ServerAddresses []string `json:"ServerAddresses"`
}

// New listens on 127.0.0.1:port for connections to the server at serverURL and to those kept in
// stateFile from an earlier run with the same URL.
func New(serverURL string, port int, stateFile string) (*Balancer, error) {
	parsed, err := url.Parse(serverURL)
	if err != nil {
		return nil, err
	}
	first := parsed.Host
	if parsed.Port() == "" {
		first = net.JoinHostPort(parsed.Hostname(), "443")
	}
	b := &Balancer{stateFile: stateFile, first: first, open: map[string]map[net.Conn]bool{}}
	if raw, err := os.ReadFile(stateFile); err == nil {
		if err := json.Unmarshal(raw, &b.state); err != nil || b.state.ServerURL != serverURL {
			b.state = state{}
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	b.state.ServerURL = serverURL
	b.listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return b, err
}

// URL is where this machine's components reach the apiserver.
func (b *Balancer) URL() string { return "https://" + b.listener.Addr().String() }

// Update sets the servers that the cluster's own endpoints name ("host:port").
func (b *Balancer) Update(addresses []string) error {
	if len(addresses) == 0 {
		return nil // a cluster without servers is a mistake in what was read
	}
	addresses = slices.Clone(addresses)
	slices.Sort(addresses)
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(addresses, b.state.ServerAddresses) {
		return nil
	}
	logx.Infof("Updated load balancer server addresses -> %v [default: %s]", addresses, b.first)
	b.state.ServerAddresses = addresses
	raw, err := json.MarshalIndent(b.state, "", "  ")
	if err != nil {
		return err
	}
	return pki.WriteFile(b.stateFile, raw, 0o600)
}

// servers lists whom to try: those of the cluster, then the address we joined through.
func (b *Balancer) servers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.Clone(b.state.ServerAddresses)
	if !slices.Contains(list, b.first) {
		list = append(list, b.first)
	}
	return list
}

// Run serves until ctx ends.
func (b *Balancer) Run(ctx context.Context) error {
	go func() {
		<-ctx.Done()
		_ = b.listener.Close()
	}()
	go b.check(ctx)
	for {
		conn, err := b.listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go b.forward(ctx, conn)
	}
}

func (b *Balancer) forward(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	dialer := net.Dialer{Timeout: dialTimeout}
	for _, address := range b.servers() {
		server, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			logx.Debugf("Load balancer: %s: %v", address, err)
			continue
		}
		b.track(address, server, true)
		done := make(chan struct{}, 2)
		pipe := func(to, from net.Conn) {
			_, _ = io.Copy(to, from) // either side may end the connection
			done <- struct{}{}
		}
		go pipe(server, client)
		go pipe(client, server)
		<-done
		b.track(address, server, false)
		_ = server.Close()
		return
	}
}

func (b *Balancer) track(address string, conn net.Conn, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[address] == nil {
		b.open[address] = map[net.Conn]bool{}
	}
	if on {
		b.open[address][conn] = true
	} else {
		delete(b.open[address], conn)
	}
}

// check cuts the connections to a server that no longer takes new ones: a dead host sends no RST,
// and a kubelet that waits for TCP to notice loses its Ready state.
func (b *Balancer) check(ctx context.Context) {
	misses := map[string]int{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkEvery):
		}
		for _, address := range b.servers() {
			conn, err := net.DialTimeout("tcp", address, dialTimeout)
			if err == nil {
				misses[address] = 0
				_ = conn.Close()
				continue
			}
			if misses[address]++; misses[address] == maxMisses {
				logx.Warnf("Server %s does not answer, closing connections to it: %v", address, err)
				b.cut(address)
			}
		}
	}
}

func (b *Balancer) cut(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.open[address] {
		_ = conn.Close()
	}
}
