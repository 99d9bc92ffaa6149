package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"busbar/lab/k3s/internal/flannel"
	"busbar/lab/k3s/internal/logx"
)

// DefaultIP is the address of the interface that the default route leaves by: the node's address
// where none is given.
func DefaultIP() (string, error) {
	_, address, err := External("")
	if err != nil {
		return "", fmt.Errorf("%w: set node-ip", err)
	}
	return address, nil
}

// External is the interface of the pod network and its address: `wanted`, or that of the default route.
func External(wanted string) (name, address string, err error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return "", "", err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return "", "", err
	}
	defaultRoute := ""
	var interfaces []flannel.Interface
	for _, link := range links {
		one := flannel.Interface{Name: link.Attrs().Name}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return "", "", err
		}
		for _, found := range addresses {
			if parsed, ok := netip.AddrFromSlice(found.IP.To4()); ok {
				one.Addresses = append(one.Addresses, parsed)
			}
		}
		interfaces = append(interfaces, one)
		for _, route := range routes {
			isDefault := route.Dst == nil || route.Dst.String() == "0.0.0.0/0"
			if isDefault && route.LinkIndex == link.Attrs().Index && defaultRoute == "" {
				defaultRoute = one.Name
			}
		}
	}
	return flannel.External(wanted, defaultRoute, interfaces)
}

// sysctls are what a node needs to forward for its pods; bridge-nf only exists with br_netfilter.
var sysctls = map[string]bool{
	"net/ipv4/ip_forward":                true,
	"net/bridge/bridge-nf-call-iptables": false,
}

// subnets is flannel's file for other programs; here with the one line that scripts which remove K3s read.
const subnets = "/run/flannel/subnet.env"

// PrepareHost switches forwarding on and lets pods out: masqueraded to other networks, with their own address
// to each other. The rules carry flannel's mark, by which scripts that clean up after K3s find them.
func PrepareHost(clusterCIDR string) error {
	for name, needed := range sysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte("1"), 0o644); err != nil {
			if needed {
				return err
			}
			logx.Warnf("sysctl %s was not set: %v", name, err)
		}
	}
	for _, rule := range []string{
		"-t nat -A POSTROUTING -s CIDR ! -d CIDR -m comment --comment flanneld-masq -j MASQUERADE",
		"-t filter -A FORWARD -s CIDR -m comment --comment flanneld-forward -j ACCEPT",
		"-t filter -A FORWARD -d CIDR -m comment --comment flanneld-forward -j ACCEPT",
	} {
		if err := ensureRule(strings.ReplaceAll(rule, "CIDR", clusterCIDR)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(subnets), 0o755); err != nil {
		return err
	}
	return os.WriteFile(subnets, []byte("FLANNEL_NETWORK="+clusterCIDR+"\n"), 0o644)
}

func ensureRule(rule string) error {
	check := strings.Fields("-w 10 " + strings.Replace(rule, " -A ", " -C ", 1))
	if exec.Command("iptables", check...).Run() == nil {
		return nil
	}
	output, err := exec.Command("iptables", strings.Fields("-w 10 "+rule)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iptables %s: %w: %s", rule, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// Peer is another node: its pods are reached via its address.
type Peer struct {
	PodCIDR string
	Address string
}

// routeProtocol marks our routes, so that those of removed nodes can be recognised.
const routeProtocol = 77

// SyncRoutes makes the routes to other nodes' pods be exactly these.
func SyncRoutes(peers []Peer) error {
	wanted := map[string]bool{}
	var errs []error
	for _, peer := range peers {
		_, target, err := net.ParseCIDR(peer.PodCIDR)
		gateway := net.ParseIP(peer.Address)
		if err != nil || gateway == nil {
			errs = append(errs, fmt.Errorf("no route to pods in %q via %q", peer.PodCIDR, peer.Address))
			continue
		}
		route := &netlink.Route{Dst: target, Gw: gateway, Protocol: routeProtocol}
		if err := netlink.RouteReplace(route); err != nil {
			// An earlier route, by way of another interface of the peer, is removed below.
			errs = append(errs, fmt.Errorf("route %s via %s: %w", target, gateway, err))
			continue
		}
		wanted[target.String()] = true
	}
	present, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
		&netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, route := range present {
		if route.Dst != nil && !wanted[route.Dst.String()] {
			errs = append(errs, netlink.RouteDel(&route))
		}
	}
	return errors.Join(errs...)
}
