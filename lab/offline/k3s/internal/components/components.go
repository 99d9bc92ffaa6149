// Package components holds the real Kubernetes components, etcd and kubectl. Each runs as a separate
// process (`k3s kubelet …`), because they share flags, feature gates and metrics registries.
package components

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// DefaultKubeconfig is what `k3s kubectl` uses without --kubeconfig and KUBECONFIG.
const DefaultKubeconfig = "/etc/rancher/k3s/k3s.yaml"

// Known are the names this binary can be called by after `k3s`.
var Known = map[string]func(args []string) int{
	"etcd": func(args []string) int {
		etcdmain.Main(append([]string{"etcd"}, args...)) // ends the process itself on errors
		return 0
	},
	"kube-apiserver": apiServer,
	"kube-controller-manager": func(args []string) int {
		return run(controllermanager.NewControllerManagerCommand(), args)
	},
	"kube-scheduler": func(args []string) int { return run(scheduler.NewSchedulerCommand(), args) },
	"kube-proxy":     func(args []string) int { return run(proxy.NewProxyCommand(), args) },
	"kubelet":        func(args []string) int { return run(kubelet.NewKubeletCommand(context.Background()), args) },
	"kubectl":        runKubectl,
}

func run(command *cobra.Command, args []string) int {
	os.Args = append([]string{command.Name()}, args...)
	command.SetArgs(args)
	return cli.Run(command)
}

func runKubectl(args []string) int {
	if os.Getenv("KUBECONFIG") == "" {
		if err := os.Setenv("KUBECONFIG", DefaultKubeconfig); err != nil {
			panic(err) // only for an empty name
		}
	}
	os.Args = append([]string{"kubectl"}, args...)
	return run(kubectl.NewDefaultKubectlCommand(), args)
}
