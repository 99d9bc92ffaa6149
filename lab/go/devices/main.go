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
	"time"

	"busbar/lab/devices/cluster"
	"busbar/lab/devices/hardware"
	"busbar/lab/devices/nfd"
	"busbar/lab/devices/operator"
	"busbar/lab/devices/plugin"
	"busbar/lab/devices/toolkit"
)

const validateEvery = 5 * time.Second

const usage = `usage:
  devices device-plugin --kind gpu|hca --resource NAME --count-from FILE [--addresses A,B]
  devices operator --policy ClusterPolicy|NicClusterPolicy --namespace NS --image IMAGE --release VERSION
  devices toolkit --misses FILE [--version VERSION]
  devices nfd --node NAME
  devices validate --count-from FILE
  devices idle | ok
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
		return runToolkit(ctx, words[1:])
	case "nfd":
		return runNFD(ctx, words[1:])
	case "validate":
		return runValidation(ctx, words[1:])
	case "idle":
		<-ctx.Done()
		return nil
	case "ok":
		return nil // for probes and hooks: the image has no other program
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
	if *kind == "hca" {
		if inventory, err = inventory.Once(); err != nil {
			return err
		}
	}
	return plugin.Run(ctx, plugin.Options{Resource: *resource, Inventory: inventory})
}

func runToolkit(ctx context.Context, words []string) error {
	flags := flag.NewFlagSet("toolkit", flag.ExitOnError)
	misses := flags.String("misses", "", "a file with the number of signals that hit the toolkit itself; missing: 0")
	version := flags.String("version", "", "another one rolls out the DaemonSet again")
	_ = flags.Parse(words) // ExitOnError
	slog.Info("toolkit", "version", *version)
	return toolkit.Run(ctx, toolkit.Options{Misses: *misses})
}

func runNFD(ctx context.Context, words []string) error {
	flags := flag.NewFlagSet("nfd", flag.ExitOnError)
	node := flags.String("node", "", "the Node to label")
	folder := flags.String("hardware", "/hardware/busbar-lab", "the host's folder with the lists of devices")
	_ = flags.Parse(words) // ExitOnError
	client, err := cluster.InPod()
	if err != nil {
		return err
	}
	return nfd.Run(ctx, nfd.Options{Client: client, Node: *node, Hardware: *folder})
}

// runValidation waits until the host has a GPU, as the validation of the driver waits for nvidia-smi.
func runValidation(ctx context.Context, words []string) error {
	flags := flag.NewFlagSet("validate", flag.ExitOnError)
	source := flags.String("count-from", "", "as of the device plugin")
	_ = flags.Parse(words) // ExitOnError
	inventory, err := hardware.ForKind("gpu", "", *source)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if found, err := inventory.Present(); err != nil || len(found) > 0 {
			return err
		}
		slog.Info("no GPU on this host, waiting")
		select {
		case <-ctx.Done():
		case <-time.After(validateEvery):
		}
	}
	return ctx.Err()
}

func runOperator(ctx context.Context, words []string) error {
	flags := flag.NewFlagSet("operator", flag.ExitOnError)
	policy := flags.String("policy", "", "the kind to look after: ClusterPolicy or NicClusterPolicy")
	namespace := flags.String("namespace", "", "where the DaemonSets go")
	image := flags.String("image", "", "the image of the device plugin: this program's own")
	release := flags.String("release", "", "of the operator")
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
	pod, err := os.Hostname()
	if err != nil {
		return err
	}
	return operator.Run(
		ctx, operator.Options{Client: client, Policy: kind, Namespace: *namespace, Image: *image, Release: *release}, pod)
}
