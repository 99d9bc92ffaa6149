package agent

import (
	"context"
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"busbar/lab/k3s/internal/logx"
)

const (
	serversEvery = 10 * time.Second
	callTimeout  = 5 * time.Second
)

// followServers updates the load balancer's list to the apiservers that the cluster names.
func (n *Node) followServers(ctx context.Context, client kubernetes.Interface) error {
	for {
		addresses, err := apiservers(ctx, client)
		switch {
		case err == nil:
			if err := n.Balancer.Update(addresses); err != nil {
				return err
			}
		case ctx.Err() == nil:
			logx.Debugf("The servers of the cluster are not known: %v", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(serversEvery):
		}
	}
}

func apiservers(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	slices, err := client.DiscoveryV1().EndpointSlices("default").List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, slice := range slices.Items {
		for _, port := range slice.Ports {
			if port.Port == nil {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				for _, address := range endpoint.Addresses {
					addresses = append(addresses, net.JoinHostPort(address, strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	return addresses, nil
}
