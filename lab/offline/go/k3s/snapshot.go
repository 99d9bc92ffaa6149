package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc/grpclog"

	"busbar/lab/k3s/internal/agent"
	"busbar/lab/k3s/internal/config"
	"busbar/lab/k3s/internal/etcd"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/server"
)

// runSnapshot is `k3s etcd-snapshot save|ls|prune|delete NAME…`; it reads the server's config.yaml.
func runSnapshot(args []string) int {
	// gRPC warns of connections that are closed while they open, which is what a short command does.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if err := snapshot(args); err != nil {
		logx.Fatalf("Error: %v", err)
		return 1
	}
	return 0
}

func snapshot(args []string) error {
	action := "save"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		action, args = args[0], args[1:]
	}
	var names, flags []string
	for _, arg := range args {
		// The names of K3s's shorter flags for this command.
		for _, short := range []string{"name", "snapshot-retention", "dir", "snapshot-compress"} {
			if bare := strings.TrimLeft(arg, "-"); bare != arg && (bare == short || strings.HasPrefix(bare, short+"=")) {
				arg = "--etcd-snapshot-" + strings.TrimPrefix(bare, "snapshot-")
			}
		}
		if action == "delete" && !strings.HasPrefix(arg, "-") {
			names = append(names, arg)
			continue
		}
		flags = append(flags, arg)
	}
	c, _, err := config.Parse("server", flags)
	if err != nil {
		return err
	}
	ip, err := agent.NodeIP(c)
	if err != nil {
		return err
	}
	base := c.SnapshotName
	if base == "etcd-snapshot" && action == "save" {
		base = "on-demand"
	}
	instance := etcd.Instance{ServerDir: filepath.Join(c.DataDir, "server"), NodeName: c.NodeName, NodeIP: ip}
	snapshots := server.SnapshotsOf(c, instance)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch action {
	case "save":
		saved, err := snapshots.Save(ctx, base)
		if err != nil {
			return err
		}
		logx.Infof("Snapshot %s saved.", saved.Name)
		return nil
	case "ls", "list", "l":
		return list(ctx, snapshots)
	case "prune":
		gone, err := snapshots.Prune(base)
		for _, one := range gone {
			logx.Infof("Snapshot %s deleted.", one.Name)
		}
		return err
	case "delete":
		return remove(snapshots, names)
	}
	return fmt.Errorf("etcd-snapshot has no action %q: it has save, ls, prune and delete", action)
}

func list(ctx context.Context, snapshots etcd.Snapshots) error {
	all, err := snapshots.List()
	if err != nil {
		return err
	}
	var stored []etcd.Snapshot
	if snapshots.Bucket != nil {
		if stored, err = snapshots.Bucket.List(ctx); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, _ = fmt.Fprintln(table, "Name\tLocation\tSize\tCreated")
	for _, one := range all {
		_, _ = fmt.Fprintf(table, "%s\tfile://%s\t%d\t%s\n", one.Name, one.Path, one.Size, one.Created.UTC().Format(time.RFC3339))
	}
	for _, one := range stored {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", one.Name, one.Path, one.Size, one.Created.UTC().Format(time.RFC3339))
	}
	return table.Flush()
}

func remove(snapshots etcd.Snapshots, names []string) error {
	if len(names) == 0 {
		return fmt.Errorf("no snapshots given for removal")
	}
	all, err := snapshots.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		found := false
		for _, one := range all {
			if one.Name == name {
				found = true
				if err := os.Remove(one.Path); err != nil {
					return err
				}
				logx.Infof("Snapshot %s deleted.", name)
			}
		}
		if !found {
			return fmt.Errorf("snapshot %q is not in %s", name, snapshots.Dir)
		}
	}
	return nil
}
