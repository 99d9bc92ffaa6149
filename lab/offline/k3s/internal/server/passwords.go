package server

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"busbar/lab/k3s/internal/nodepassword"
	"busbar/lab/k3s/internal/nodepassword/passwords"
)

// followPasswords keeps the Secrets with the nodes' passwords, this server's own among them.
func (s *Server) followPasswords(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		return err
	}
	if !s.cfg.DisableAgent {
		if err := passwords.EnsureOwn(ctx, client, s.cfg.NodeName, nodepassword.File); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return passwords.Follow(ctx, client)
}
