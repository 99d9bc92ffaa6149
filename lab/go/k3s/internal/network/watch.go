package network

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"busbar/lab/k3s/internal/logx"
)

const resync = 30 * time.Second

// Follow watches the nodes until ctx ends: it writes the CNI configuration once this node has a
// pod CIDR and keeps the routes to the others.
func Follow(ctx context.Context, client kubernetes.Interface, nodeName, confDir string) error {
	factory := informers.NewSharedInformerFactory(client, resync)
	informer := factory.Core().V1().Nodes().Informer()
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() },
		UpdateFunc: func(old, new any) {
			// Status heartbeats are most of the updates and change nothing here.
			if routing(old.(*corev1.Node)) != routing(new.(*corev1.Node)) {
				poke()
			}
		},
		DeleteFunc: func(any) { poke() },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	written := ""
	for {
		var peers []Peer
		for _, item := range informer.GetStore().List() {
			node := item.(*corev1.Node)
			way := routing(node)
			switch {
			case node.Name == nodeName && way.PodCIDR != "" && way.PodCIDR != written:
				if err := WriteConf(confDir, way.PodCIDR); err != nil {
					return err
				}
				written = way.PodCIDR
				logx.Infof("Pod network %s written to %s", way.PodCIDR, confDir)
			case node.Name != nodeName && way.PodCIDR != "" && way.Address != "":
				peers = append(peers, way)
			}
		}
		if err := SyncRoutes(peers); err != nil {
			logx.Errorf("Routes to other nodes: %v", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(resync):
		}
	}
}

func routing(node *corev1.Node) Peer {
	way := Peer{PodCIDR: node.Spec.PodCIDR}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			way.Address = address.Address
			break
		}
	}
	return way
}
