package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	nfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"
)

const port = 2049

// errRevoked ends the connection of a client to which nothing is exported any more.
var errRevoked = errors.New("the address is no longer exported to")

var refused billy.Filesystem = &folder{osfs.New("/var/empty")}

func serve(address, table string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return serveOn(listener, table)
}

// serveOn serves the clients of the table. The others get a server of their own, which exports nothing: it refuses to
// mount, and knows none of the file handles that a client may still have.
func serveOn(listener net.Listener, table string) error {
	clients := queue{listener, make(chan net.Conn)}
	others := queue{listener, make(chan net.Conn)}
	go nfs.Serve(clients, helpers.NewCachingHandler(&server{table: table}, 4096))
	go nfs.Serve(others, helpers.NewCachingHandler(&server{table: os.DevNull}, 16))
	defer close(clients.connections)
	defer close(others.connections)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if exported(table, "", remote(conn)) {
			clients.connections <- connection{conn, table}
		} else {
			others.connections <- conn
		}
	}
}

// server mounts the folders that are exported to the client's address, and no others.
type server struct {
	table   string
	mutex   sync.Mutex
	folders map[string]billy.Filesystem
}

func (s *server) Mount(_ context.Context, conn net.Conn, request nfs.MountRequest) (
	nfs.MountStatus, billy.Filesystem, []nfs.AuthFlavor,
) {
	path := string(request.Dirpath)
	if !exported(s.table, path, remote(conn)) {
		// The library makes a handle of the file system also where there is none to give.
		return nfs.MountStatusErrAcces, refused, nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.folders == nil {
		s.folders = map[string]billy.Filesystem{}
	}
	if s.folders[path] == nil {
		s.folders[path] = &folder{osfs.New(path)}
	}
	return nfs.MountStatusOk, s.folders[path], []nfs.AuthFlavor{nfs.AuthFlavorNull, nfs.AuthFlavorUnix}
}

func (s *server) Change(fs billy.Filesystem) billy.Change { return fs.(*folder) }

func (s *server) FSStat(context.Context, billy.Filesystem, *nfs.FSStat) error { return nil }

// Handles are the caching handler's part.
func (s *server) ToHandle(billy.Filesystem, []string) []byte { return nil }

func (s *server) FromHandle([]byte) (billy.Filesystem, []string, error) {
	return nil, nil, errors.New("unknown handle")
}

func (s *server) InvalidateHandle(billy.Filesystem, []byte) error { return nil }

func (s *server) HandleLimit() int { return -1 }

// folder is an exported folder, whose attributes may be changed.
type folder struct {
	billy.Filesystem
}

func (f *folder) Chmod(name string, mode os.FileMode) error {
	return os.Chmod(f.Join(f.Root(), name), mode)
}

func (f *folder) Lchown(name string, uid, gid int) error {
	return os.Lchown(f.Join(f.Root(), name), uid, gid)
}

func (f *folder) Chown(name string, uid, gid int) error {
	return os.Chown(f.Join(f.Root(), name), uid, gid)
}

func (f *folder) Chtimes(name string, accessed, modified time.Time) error {
	return os.Chtimes(f.Join(f.Root(), name), accessed, modified)
}

// connection ends when the export to its client ends: the table is asked at every request, as the kernel asks its own.
type connection struct {
	net.Conn
	table string
}

func (c connection) Read(buffer []byte) (int, error) {
	n, err := c.Conn.Read(buffer)
	if !exported(c.table, "", remote(c)) {
		return 0, errRevoked
	}
	return n, err
}

// queue is a listener of connections that another one has accepted.
type queue struct {
	net.Listener
	connections chan net.Conn
}

func (q queue) Accept() (net.Conn, error) {
	conn, open := <-q.connections
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func remote(conn net.Conn) netip.Addr {
	address, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap()
}
