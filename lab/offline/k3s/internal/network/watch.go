package network

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"busbar/lab/k3s/internal/flannel"
	"busbar/lab/k3s/internal/logx"
)

const (
	resync        = 30 * time.Second
	announceRetry = 2 * time.Second
	callTimeout   = 10 * time.Second
)

// Node is this node's part of the pod network.
type Node struct {
	Name    string
	Address string // of the interface that pod traffic leaves by
	ConfDir string
	// Kubelet may annotate this node; Ready is called once, when pods can get addresses.
	Kubelet kubernetes.Interface
	Ready   func()
}

// Follow watches the nodes until ctx ends: once this node has a pod CIDR it tells the others its address and writes
// the CNI configuration; it keeps the routes to the others. Without a pod CIDR it waits, as K3s does.
func (n Node) Follow(ctx context.Context, client kubernetes.Interface) error {
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
		wait := resync
		var peers []Peer
		for _, item := range informer.GetStore().List() {
			node := item.(*corev1.Node)
			way := routing(node)
			switch {
			case node.Name == n.Name && way.PodCIDR != "" && (way.PodCIDR != written || way.Address != n.Address):
				if err := n.announce(ctx); err != nil {
					logx.Errorf("flannel failed to set address annotations: %v", err)
					wait = announceRetry
					continue
				}
				if err := WriteConf(n.ConfDir, way.PodCIDR); err != nil {
					return err
				}
				logx.Infof("Flannel found PodCIDR assigned for node %s: %s", n.Name, way.PodCIDR)
				if written == "" {
					n.Ready()
				}
				written = way.PodCIDR
			case node.Name != n.Name && way.PodCIDR != "" && way.Address != "":
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
		case <-time.After(wait):
		}
	}
}

func (n Node) announce(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": flannel.Annotations(n.Address)}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = n.Kubelet.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// routing is how a node's pods are reached: through the address that it announced, not its InternalIP.
func routing(node *corev1.Node) Peer {
	return Peer{PodCIDR: node.Spec.PodCIDR, Address: node.Annotations[flannel.PublicIP]}
}
