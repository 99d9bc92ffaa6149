// Package agent runs what makes a host a node: containerd, kubelet, kube-proxy and the pod network.
package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"busbar/lab/k3s/internal/config"
	"busbar/lab/k3s/internal/containerd"
	"busbar/lab/k3s/internal/join"
	"busbar/lab/k3s/internal/lb"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/network"
	"busbar/lab/k3s/internal/nodepassword"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/proc"
)

const retryPause = 2 * time.Second

// Node is one host on its way to becoming a node.
type Node struct {
	Config *config.Config
	NodeIP string
	// URL is where this host reaches the apiserver; Token opens its supervisor.
	URL   string
	Token string
	// Balancer is the client-side load balancer; nil on a server, which has its own apiserver.
	Balancer *lb.Balancer
	Group    *proc.Group

	runtime containerd.Runtime
	cluster join.ClusterConfig
}

func (n *Node) dir(parts ...string) string {
	return filepath.Join(append([]string{n.Config.DataDir, "agent"}, parts...)...)
}

func (n *Node) cniBinDir() string { return filepath.Join(n.Config.DataDir, "data", "cni") }

// StartRuntime starts containerd and imports the images; it needs no cluster. The channel is
// closed when the kubelet may start.
func (n *Node) StartRuntime() <-chan struct{} {
	n.runtime = containerd.Runtime{
		AgentDir: n.dir(), CNIBinDir: n.cniBinDir(), CNIConfDir: n.dir("etc", "cni", "net.d"),
		PauseImage: n.image(n.Config.PauseImage), Snapshotter: n.Config.Snapshotter,
		DefaultRuntime: n.Config.DefaultRuntime,
	}
	ready := make(chan struct{})
	n.Group.Go(func(ctx context.Context) error {
		if err := network.LinkPlugins(n.cniBinDir()); err != nil {
			return err
		}
		if err := n.runtime.Prepare(ctx); err != nil {
			return fmt.Errorf("failed to prepare containerd: %w", err)
		}
		child, err := n.runtime.Child()
		if err != nil {
			return err
		}
		n.Group.Start(child)
		if err := n.runtime.WaitReady(ctx); err != nil {
			return err
		}
		logx.Infof("containerd is now running")
		if err := n.runtime.ImportImages(ctx); err != nil {
			return err
		}
		close(ready)
		return nil
	})
	return ready
}

func (n *Node) image(name string) string {
	if n.Config.SystemRegistry == "" {
		return name
	}
	return n.Config.SystemRegistry + "/" + name
}

// Join makes this host a node of the cluster and returns once its kubelet runs. It retries until
// ctx ends, as K3s does: a server may start later than its agents.
func (n *Node) Join(ctx context.Context, runtimeReady <-chan struct{}) error {
	access, err := n.connect(ctx)
	if err != nil {
		return err
	}
	for {
		if err = n.retrieve(ctx, access); err == nil {
			break
		}
		logx.Infof("Waiting to retrieve agent configuration; server is not ready: %v", err)
		if err := pause(ctx); err != nil {
			return err
		}
	}
	if err := n.writeKubeconfigs(access.CA); err != nil {
		return err
	}
	if err := network.PrepareHost(n.cluster.ClusterCIDR); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-runtimeReady:
	}
	if err := n.startKubelet(); err != nil {
		return err
	}
	if err := waitKubelet(ctx); err != nil {
		return err
	}
	if !n.cluster.DisableProxy {
		n.Group.Start(proc.Child{Name: "kube-proxy", Args: append([]string{"kube-proxy"}, n.proxyArgs()...), Grace: 5 * time.Second})
	}
	return n.startNetwork(ctx)
}

func (n *Node) connect(ctx context.Context) (*join.Access, error) {
	for {
		access, err := join.Connect(ctx, n.URL, n.Token, false)
		if err == nil {
			return access, nil
		}
		logx.Errorf("Failed to validate connection to cluster at %s: %v", n.serverName(), err)
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

func (n *Node) serverName() string {
	if n.Config.ServerURL != "" {
		return n.Config.ServerURL
	}
	return n.URL
}

func (n *Node) retrieve(ctx context.Context, access *join.Access) error {
	cluster, err := access.Config(ctx)
	if err != nil {
		return err
	}
	if n.Config.FlannelIface != "" && cluster.FlannelBackend != "none" {
		if _, err := net.InterfaceByName(n.Config.FlannelIface); err != nil {
			return fmt.Errorf("unable to find interface %s: %w", n.Config.FlannelIface, err)
		}
	}
	machine := join.Node{Name: n.Config.NodeName, IP: n.NodeIP, PasswordFile: nodepassword.File}
	for _, name := range []string{join.ServingKubelet, join.ClientKubelet, join.ClientProxy, join.ClientNode} {
		if err := access.Certificate(ctx, n.dir(), name, machine); err != nil {
			return fmt.Errorf("%s: %w", n.dir(name), err)
		}
	}
	n.cluster = cluster
	return nil
}

func (n *Node) writeKubeconfigs(ca []byte) error {
	if err := pki.WriteFile(n.dir("server-ca.crt"), ca, 0o644); err != nil {
		return err
	}
	for file, client := range map[string]string{
		"kubelet.kubeconfig": "client-kubelet", "kubeproxy.kubeconfig": "client-kube-proxy",
		"k3scontroller.kubeconfig": "client-k3s-controller",
	} {
		if err := (pki.Kubeconfig{Server: n.URL, CA: ca, Client: n.dir(client)}).Write(n.dir(file), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startNetwork returns when pods can get addresses; on a server, whose readiness does not depend on it in K3s, at once.
func (n *Node) startNetwork(ctx context.Context) error {
	client, err := clientOf(n.dir("k3scontroller.kubeconfig"))
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	if n.cluster.FlannelBackend == "none" {
		close(ready)
	} else if err := n.startPodNetwork(client, func() { close(ready) }); err != nil {
		return err
	}
	if n.Balancer == nil {
		return nil
	}
	n.Group.Go(func(ctx context.Context) error { return n.followServers(ctx, client) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-ready:
		return nil
	}
}

func (n *Node) startPodNetwork(client kubernetes.Interface, ready func()) error {
	name, address, err := network.External(n.Config.FlannelIface)
	if err != nil {
		return fmt.Errorf("flannel exited: %w", err)
	}
	logx.Infof("The interface %s with ipv4 address %s will be used by flannel", name, address)
	kubelet, err := clientOf(n.dir("kubelet.kubeconfig"))
	if err != nil {
		return err
	}
	node := network.Node{
		Name: n.Config.NodeName, Address: address, ConfDir: n.dir("etc", "cni", "net.d"), Kubelet: kubelet, Ready: ready,
	}
	n.Group.Go(func(ctx context.Context) error { return node.Follow(ctx, client) })
	return nil
}

func clientOf(kubeconfig string) (kubernetes.Interface, error) {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(rest)
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(retryPause):
		return nil
	}
}

// Run is `k3s agent`: it returns when its context ends, or with a fatal error.
func Run(ctx context.Context, c *config.Config) error {
	ip, err := NodeIP(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(c.DataDir, "agent", "etc"), 0o755); err != nil {
		return err
	}
	balancer, err := lb.New(c.ServerURL, c.LBPort, filepath.Join(c.DataDir, "agent", "etc", "k3s-agent-load-balancer.json"))
	if err != nil {
		return fmt.Errorf("failed to start the client load balancer: %w", err)
	}
	group := proc.NewGroup(ctx)
	group.Go(balancer.Run)
	node := &Node{Config: c, NodeIP: ip, URL: balancer.URL(), Token: c.Token, Balancer: balancer, Group: group}
	runtimeReady := node.StartRuntime()
	group.Go(func(ctx context.Context) error {
		if err := node.Join(ctx, runtimeReady); err != nil {
			return err
		}
		logx.Infof("k3s agent is up and running")
		proc.Notify("READY=1")
		return nil
	})
	return group.Wait()
}

// NodeIP is the node's address: as configured, or that of the default route.
func NodeIP(c *config.Config) (string, error) {
	if c.NodeIP != "" {
		return c.NodeIP, nil
	}
	return network.DefaultIP()
}
