// Package flannel chooses the interface of the pod network, and tells other nodes its address, as flannel in K3s does
// (pkg/agent/flannel in k3s-io/k3s).
package flannel

import (
	"fmt"
	"net/netip"
)

// The annotations by which nodes find each other. A Node without PublicIP has no route.
const (
	PublicIP = "flannel.alpha.coreos.com/public-ip"
	Backend  = "flannel.alpha.coreos.com/backend-type"
	Manager  = "flannel.alpha.coreos.com/kube-subnet-manager"
)

// Interface is a network interface of this host, with its addresses in the kernel's order.
type Interface struct {
	Name      string
	Addresses []netip.Addr
}

// External returns the interface that carries the traffic between the nodes' pods, and its address: flannel-iface,
// or without it the interface of the default route, whatever node-ip says.
func External(wanted, defaultRoute string, interfaces []Interface) (name, address string, err error) {
	name = wanted
	if name == "" {
		name = defaultRoute
	}
	if name == "" {
		return "", "", fmt.Errorf("failed to get default interface: unable to find default route")
	}
	for _, one := range interfaces {
		if one.Name != name {
			continue
		}
		for _, address := range one.Addresses {
			if address.Is4() && address.IsGlobalUnicast() {
				return name, address.String(), nil
			}
		}
		return "", "", fmt.Errorf("failed to find IPv4 address for interface %s", name)
	}
	return "", "", fmt.Errorf("unable to find interface %s", name)
}

// Annotations are what a node tells the others. The backend is what this replacement does: plain routes.
func Annotations(address string) map[string]string {
	return map[string]string{PublicIP: address, Backend: "host-gw", Manager: "true"}
}
