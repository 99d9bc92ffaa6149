// Command k3s replaces K3s in the lab: K3s's files, flags, tokens and endpoints around real
// Kubernetes components. README.md lists what it is faithful to and what not.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"k8s.io/component-base/version"

	"busbar/lab/k3s/internal/agent"
	"busbar/lab/k3s/internal/components"
	"busbar/lab/k3s/internal/config"
	"busbar/lab/k3s/internal/containerd"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/server"
)

const usage = `k3s (replacement of busbar's lab) - Kubernetes, small and simple

Usage: k3s COMMAND [OPTIONS]
  server         Run management server
  agent          Run node agent
  kubectl        Run kubectl
  ctr            Run ctr of the host's containerd
  crictl         Run crictl of the host, where there is one
  --version      Print the version
`

func main() {
	args := os.Args[1:]
	command := filepath.Base(os.Args[0])
	if _, known := components.Known[command]; !known {
		if len(args) == 0 {
			fmt.Print(usage)
			return
		}
		command, args = args[0], args[1:]
	}
	os.Exit(dispatch(command, args))
}

func dispatch(command string, args []string) int {
	if run, known := components.Known[command]; known {
		return run(args)
	}
	switch command {
	case "server", "agent":
		return runNode(command, args)
	case "ctr":
		return pass("ctr", append([]string{"--address", containerd.Socket, "--namespace", "k8s.io"}, args...))
	case "crictl":
		return pass("crictl", append([]string{"--runtime-endpoint", "unix://" + containerd.Socket}, args...))
	case "--version", "-v", "version":
		fmt.Printf("k3s version %s (replacement)\ngo version %s\n", version.Get().GitVersion, runtime.Version())
		return 0
	case "--help", "-h", "help":
		fmt.Print(usage)
		return 0
	}
	fmt.Fprintf(os.Stderr, "No help topic for '%s'\n", command)
	return 3
}

func runNode(command string, args []string) int {
	c, warnings, err := config.Parse(command, args)
	for _, warning := range warnings {
		logx.Warnf("%s", warning)
	}
	if err != nil {
		logx.Fatalf("Error: %v", err)
		return 1
	}
	logx.SetDebug(c.Debug)
	if os.Geteuid() != 0 {
		logx.Fatalf("Error: must run as root")
		return 1
	}
	logx.Infof("Starting k3s %s (replacement)", version.Get().GitVersion)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	run := server.Run
	if command == "agent" {
		run = agent.Run
	}
	if err := run(ctx, c); err != nil && ctx.Err() == nil {
		logx.Fatalf("Error: %v", err)
		return 1
	}
	return 0
}

// pass executes a tool of the host that real K3s bundles.
func pass(tool string, args []string) int {
	path, err := exec.LookPath(tool)
	if err != nil {
		fmt.Fprintf(os.Stderr, "k3s %s: the replacement runs the host's %s, which is missing: %v\n", tool, tool, err)
		return 1
	}
	err = syscall.Exec(path, append([]string{tool}, args...), os.Environ())
	fmt.Fprintf(os.Stderr, "k3s %s: %v\n", tool, err)
	return 1
}
