package main

import (
	"fmt"
	"io"
	"net"
	"strconv"

	client3 "github.com/willscott/go-nfs-client/nfs"
	"github.com/willscott/go-nfs-client/nfs/rpc"
)

// put writes a file of an export.
func put(address, folder, file string, from io.Reader) error {
	return mounted(address, port, folder, func(target *client3.Target) error {
		opened, err := target.OpenFile("/"+file, 0o644)
		if err != nil {
			return fmt.Errorf("open %s: %w", file, err)
		}
		if _, err := io.Copy(opened, from); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		return opened.Close()
	})
}

// get prints a file of an export.
func get(address, folder, file string, to io.Writer) error {
	return mounted(address, port, folder, func(target *client3.Target) error {
		opened, err := target.Open("/" + file)
		if err != nil {
			return fmt.Errorf("open %s: %w", file, err)
		}
		if _, err := io.Copy(to, opened); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		return opened.Close()
	})
}

func mounted(address string, port int, folder string, work func(*client3.Target) error) error {
	connection, err := rpc.DialTCP("tcp", net.JoinHostPort(address, strconv.Itoa(port)), false)
	if err != nil {
		return err
	}
	defer connection.Close()
	mount := client3.Mount{Client: connection}
	target, err := mount.Mount(folder, rpc.AuthNull)
	if err != nil {
		return fmt.Errorf("mount %s:%s: %w", address, folder, err)
	}
	if err := work(target); err != nil {
		return err
	}
	return mount.Unmount()
}
