// The lab's simulators of the NVIDIA operators: a device plugin for hardware that does not exist, and the
// operator that rolls it out. One static program, so that its image contains nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"busbar/lab/devices/cluster"
	"busbar/lab/devices/hardware"
	"busbar/lab/devices/operator"
	"busbar/lab/devices/plugin"
	"busbar/lab/devices/toolkit"
)

const usage = `usage:
  devices device-plugin --kind gpu|hca --resource NAME --count-from FILE [--addresses A,B] [--kubelet-dir DIR]
  devices operator --policy ClusterPolicy|NicClusterPolicy --namespace NS --image IMAGE
  devices toolkit
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		slog.Error("ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, words []string) error {
	if len(words) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(64)
	}
	switch words[0] {
	case "device-plugin":
		return runPlugin(ctx, words[1:])
	case "operator":
		return runOperator(ctx, words[1:])
	case "toolkit":
		return toolkit.Run(ctx, "/proc")
	default:
		fmt.Fprintf(os.Stderr, "no such mode: %s\n%s", words[0], usage)
		os.Exit(64)
		return nil
	}
}

func runPlugin(ctx context.Context, words []string) error {
	flags := flag.NewFlagSet("device-plugin", flag.ExitOnError)
	kind := flags.String("kind", "", "gpu or hca: what a container is given with each device")
	resource := flags.String("resource", "", "extended resource, such as nvidia.com/gpu")
	source := flags.String("count-from", "", "a number, or one device name per line; a missing file means no devices")
	addresses := flags.String("addresses", "", "PCI addresses of the devices to offer; empty: all")
	folder := flags.String("kubelet-dir", "/var/lib/kubelet/device-plugins", "where kubelet.sock is")
	_ = flags.Parse(words) // ExitOnError
	if *resource == "" || *source == "" {
		return fmt.Errorf("--resource and --count-from are needed")
	}
	inventory, err := hardware.ForKind(*kind, *resource, *source)
	if err != nil {
		return err
	}
	if *addresses != "" {
		inventory = inventory.Only(strings.Split(*addresses, ","))
	}
	return plugin.Run(ctx, plugin.Options{Resource: *resource, Folder: *folder, Inventory: inventory})
}

func runOperator(ctx context.Context, words []string) error {
	flags := flag.NewFlagSet("operator", flag.ExitOnError)
	policy := flags.String("policy", "", "the kind to look after: ClusterPolicy or NicClusterPolicy")
	namespace := flags.String("namespace", "", "where the DaemonSets go")
	image := flags.String("image", "", "the image of the device plugin: this program's own")
	_ = flags.Parse(words) // ExitOnError
	if *namespace == "" || *image == "" {
		return fmt.Errorf("--namespace and --image are needed")
	}
	kind, err := operator.ForPolicy(*policy)
	if err != nil {
		return err
	}
	client, err := cluster.InPod()
	if err != nil {
		return err
	}
	return operator.Run(ctx, operator.Options{Client: client, Policy: kind, Namespace: *namespace, Image: *image})
}
