package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
)

const resetDeadline = 2 * time.Minute

// reset is `k3s server --cluster-reset [--cluster-reset-restore-path=FILE]`: this server becomes the only member of
// etcd, with its own data or a snapshot's, and the command ends (pkg/etcd/etcd.go `Reset`, pkg/cluster/managed.go).
func (s *Server) reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resetDeadline)
	defer cancel()
	flag := s.etcd.ResetFlag()
	if s.cfg.RestorePath == "" {
		if _, err := os.Stat(flag); err == nil {
			return fmt.Errorf("Managed etcd cluster membership was previously reset, please remove the cluster-reset flag and "+ //nolint:staticcheck // K3s's text
				"start k3s normally. If you need to perform another cluster reset, you must first manually delete the file at %s", flag)
		}
		if !s.etcd.Initialized() {
			return errors.New("this server has no etcd data to reset")
		}
	}
	if err := s.settleTokens(); err != nil {
		return err
	}
	if file := s.cfg.RestorePath; file != "" {
		if bucket := s.Snapshots().Bucket; bucket != nil {
			downloaded, err := bucket.Download(ctx, file, s.cfg.SnapshotDir)
			if err != nil {
				return err
			}
			file = downloaded
		}
		if err := s.etcd.Restore(file); err != nil {
			return err
		}
	} else if err := s.etcd.Forget(); err != nil {
		return err
	}
	if err := pki.WriteFile(flag, nil, 0o600); err != nil {
		return err
	}
	s.etcd.ForceNew = true
	if err := s.loadPKI("", "new"); err != nil {
		return err
	}
	if err := s.startAlone(ctx); err != nil {
		return err
	}
	logx.Infof("Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. " +
		"Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes")
	return nil
}

// startAlone runs etcd until it is up with this server as the only member and the token is known to be the data's.
func (s *Server) startAlone(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.etcdChild().Run(running) }()
	checked := make(chan error, 1)
	go func() { checked <- s.checkAlone(running) }()
	select {
	case err := <-ended:
		stop()
		return errors.Join(err, <-checked)
	case err := <-checked:
		stop()
		return errors.Join(err, <-ended)
	}
}

func (s *Server) checkAlone(ctx context.Context) error {
	client, err := s.etcd.Client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := s.etcd.WaitVoter(ctx, client); err != nil {
		return err
	}
	if err := s.reconcile(ctx, client, true); err != nil {
		return err
	}
	return s.etcd.OnlyMember(ctx, client)
}
