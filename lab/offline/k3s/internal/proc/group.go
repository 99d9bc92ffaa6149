package proc

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"

	"busbar/lab/k3s/internal/logx"
)

// Group runs children and background work; the first permanent failure ends all. Children stop
// in the reverse order of their start, so that etcd outlives the apiserver.
type Group struct {
	parent context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	mu     sync.Mutex
	stops  []func()
	work   sync.WaitGroup
}

// NewGroup ends when parent ends.
func NewGroup(parent context.Context) *Group {
	ctx, cancel := context.WithCancelCause(parent)
	return &Group{parent: parent, ctx: ctx, cancel: cancel}
}

// Context ends when the group is to end.
func (g *Group) Context() context.Context { return g.ctx }

// Start runs a child under supervision.
func (g *Group) Start(child Child) {
	logx.Infof("Running %s", child.Name)
	ctx, stop := context.WithCancel(context.WithoutCancel(g.ctx))
	done := make(chan struct{})
	g.mu.Lock()
	g.stops = append(g.stops, func() { stop(); <-done })
	g.mu.Unlock()
	go func() {
		defer close(done)
		if err := child.Run(ctx); err != nil {
			g.cancel(err)
		}
	}()
}

// Go runs background work that ends with the group's context; an error ends the group.
func (g *Group) Go(work func(context.Context) error) {
	g.work.Add(1)
	go func() {
		defer g.work.Done()
		if err := work(g.ctx); err != nil && g.ctx.Err() == nil {
			g.cancel(err)
		}
	}()
}

// Fail ends the group with an error.
func (g *Group) Fail(err error) { g.cancel(err) }

// Wait blocks until the group ends, stops the children and returns the error that ended it (nil: stopped).
func (g *Group) Wait() error {
	<-g.ctx.Done()
	g.work.Wait()
	g.mu.Lock()
	stops := g.stops
	g.mu.Unlock()
	for i := len(stops) - 1; i >= 0; i-- {
		stops[i]()
	}
	if g.parent.Err() != nil {
		return nil
	}
	cause := context.Cause(g.ctx)
	if errors.Is(cause, ErrShutdown) {
		logx.Infof("%v", cause)
		return nil
	}
	return cause
}

// Notify reports to systemd the state of the unit ("READY=1"); without systemd it does nothing.
func Notify(state string) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	if address[0] == '@' {
		address = "\x00" + address[1:]
	}
	socket, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		logx.Errorf("notifying systemd of %s failed: %v", state, err)
		return
	}
	defer func() { _ = socket.Close() }()
	if _, err := socket.Write([]byte(state)); err != nil {
		logx.Errorf("notifying systemd of %s failed: %v", state, err)
	}
}
