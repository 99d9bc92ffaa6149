package flannel

import (
	"net/netip"
	"strings"
	"testing"
)

func interfaceWith(name string, addresses ...string) Interface {
	one := Interface{Name: name}
	for _, address := range addresses {
		one.Addresses = append(one.Addresses, netip.MustParseAddr(address))
	}
	return one
}

// A host with a management network, which has the default route, and the cluster's network.
var host = []Interface{
	interfaceWith("lo", "127.0.0.1", "::1"),
	interfaceWith("cluster0", "fe80::1", "10.77.0.21"),
	interfaceWith("management0", "10.78.0.21"),
	interfaceWith("ib0"),
}

func TestWithoutFlannelIfaceTheDefaultRouteDecidesAndNotTheNodesAddress(t *testing.T) {
	if name, address, err := External("", "management0", host); err != nil || name != "management0" || address != "10.78.0.21" {
		t.Errorf("got %s %s, %v", name, address, err)
	}
}

func TestFlannelIfaceDecidesOverTheDefaultRoute(t *testing.T) {
	if name, address, err := External("cluster0", "management0", host); err != nil || name != "cluster0" || address != "10.77.0.21" {
		t.Errorf("got %s %s, %v", name, address, err)
	}
}

func TestAnInterfaceThatCannotCarryPodTrafficIsAnError(t *testing.T) {
	for wanted, message := range map[string]string{
		"eth9": "unable to find interface eth9", "ib0": "failed to find IPv4 address for interface ib0",
		"lo": "failed to find IPv4 address for interface lo", "": "failed to get default interface",
	} {
		if _, _, err := External(wanted, "", host); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%q: got %v, want %s", wanted, err, message)
		}
	}
}
