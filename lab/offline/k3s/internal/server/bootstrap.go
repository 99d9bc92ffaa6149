package server

import (
	"context"
	"errors"
	"fmt"

	"busbar/lab/k3s/internal/join"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/token"
)

// bootstrap decides, as K3s does: use the data on disk; else join the configured server; else start
// a cluster.
func (s *Server) bootstrap(ctx context.Context) error {
	switch {
	case s.etcd.Initialized():
		logx.Infof("Managed etcd cluster bootstrap already complete and initialized")
		if err := s.settleTokens(); err != nil {
			return err
		}
		return s.loadPKI("", "existing")
	case s.cfg.ServerURL != "":
		logx.Infof("Managed etcd cluster not yet initialized")
		return s.joinCluster(ctx)
	default:
		logx.Infof("Managed etcd cluster initializing")
		if !s.cfg.ClusterInit {
			logx.Warnf("Without cluster-init K3s would keep its data in SQLite; this replacement always uses etcd")
		}
		if err := s.settleTokens(); err != nil {
			return err
		}
		if s.cfg.SecretsEncryption {
			if err := pki.EnsureEncryption(s.dir()); err != nil {
				return err
			}
		}
		name, err := s.etcd.Name()
		if err != nil {
			return err
		}
		return s.loadPKI(name+"=https://"+s.nodeIP+":2380", "new")
	}
}

func (s *Server) loadPKI(initialCluster, state string) (err error) {
	if s.pki, err = pki.Ensure(s.dir()); err != nil {
		return err
	}
	if err := s.etcd.EnsureCerts(s.pki); err != nil {
		return err
	}
	return s.etcd.WriteConfig(initialCluster, state)
}

// settleTokens finds the cluster's passwords: configured, else stored, else generated. One that is not the stored one is
// refused with K3s's message: there the data in etcd are encrypted with it (pkg/cluster/storage.go).
func (s *Server) settleTokens() error {
	kept, err := token.ReadServerFile(s.dir())
	if err != nil {
		return err
	}
	s.passwords.Server = kept
	if s.cfg.Token != "" {
		given, err := token.Parse(s.cfg.Token)
		if err != nil {
			return err
		}
		if kept != "" && kept != given.Password {
			return errors.New("bootstrap data already found and encrypted with different token")
		}
		s.passwords.Server = given.Password
	}
	if s.passwords.Server == "" {
		if s.passwords.Server, err = token.Generate(); err != nil {
			return err
		}
	}
	return s.settleAgentToken()
}

func (s *Server) settleAgentToken() error {
	s.passwords.Agent = s.passwords.Server
	if s.cfg.AgentToken != "" {
		given, err := token.Parse(s.cfg.AgentToken)
		if err != nil {
			return fmt.Errorf("agent-token: %w", err)
		}
		s.passwords.Agent = given.Password
	}
	return nil
}

// joinCluster fetches what servers share and adds this server's etcd as a learner.
func (s *Server) joinCluster(ctx context.Context) error {
	if s.cfg.Token == "" {
		return errNoToken
	}
	access, err := join.Connect(ctx, s.cfg.ServerURL, s.cfg.Token, true)
	if err != nil {
		return fmt.Errorf("failed to validate token: %w", err)
	}
	theirs, err := access.Config(ctx)
	if err != nil {
		return fmt.Errorf("failed to validate server configuration: %w", err)
	}
	if err := s.cfg.CompareCritical(theirs.Critical); err != nil {
		return fmt.Errorf("failed to validate server configuration: %w", err)
	}
	shared, err := access.Bootstrap(ctx)
	if err != nil {
		return err
	}
	s.passwords.Server = access.Token.Password
	if err := s.settleAgentToken(); err != nil {
		return err
	}
	if s.passwords.Agent != shared.AgentPassword {
		return errors.New("failed to validate server configuration: critical configuration value mismatch between servers: agent-token")
	}
	if err := pki.WriteShared(s.dir(), shared.Files); err != nil {
		return err
	}
	if s.pki, err = pki.Ensure(s.dir()); err != nil {
		return err
	}
	if err := s.etcd.EnsureCerts(s.pki); err != nil {
		return err
	}
	members, err := access.Members(ctx)
	if err != nil {
		return err
	}
	s.joined = members
	if err := s.etcd.Join(ctx, members); err != nil {
		return fmt.Errorf("ETCD join failed: %w", err)
	}
	return nil
}
