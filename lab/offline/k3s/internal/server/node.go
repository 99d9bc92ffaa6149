package server

import (
	"context"
	"encoding/json"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"busbar/lab/k3s/internal/logx"
)

const (
	voterCondition = "EtcdIsVoter"
	memberName     = "etcd.k3s.cattle.io/node-name"
	memberAddress  = "etcd.k3s.cattle.io/node-address"
	nodeSoon       = 2 * time.Second
	nodeLater      = 15 * time.Second
	heartbeat      = 5 * time.Minute
	callTimeout    = 10 * time.Second
)

// waitAPIServer blocks until this host's apiserver is ready.
func (s *Server) waitAPIServer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		return err
	}
	said := time.Now()
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(call)
		cancel()
		if err == nil {
			return nil
		}
		if time.Since(said) > 15*time.Second {
			said = time.Now()
			logx.Infof("Waiting for API server to become available: %v", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// followNode maintains on this server's Node what K3s writes there: roles, the etcd member and whether
// it is a voter. Kubelets may not label their own roles.
func (s *Server) followNode(ctx context.Context, etcdClient *clientv3.Client) error {
	client, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		return err
	}
	for {
		wait := nodeLater
		if settled, err := s.updateNode(ctx, client, etcdClient); err != nil || !settled {
			wait = nodeSoon
			if err != nil {
				logx.Debugf("Node %s was not updated: %v", s.cfg.NodeName, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (s *Server) updateNode(ctx context.Context, client kubernetes.Interface, etcdClient *clientv3.Client) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes := client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, s.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	name, err := s.etcd.Name()
	if err != nil {
		return false, err
	}
	labels := map[string]string{"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"}
	notes := map[string]string{memberName: name, memberAddress: s.nodeIP}
	if lacks(node.Labels, labels) || lacks(node.Annotations, notes) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": notes}})
		if err != nil {
			return false, err
		}
		if _, err := nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return false, err
		}
	}
	voter, err := s.etcd.Voter(ctx, etcdClient)
	if err != nil {
		return false, err
	}
	condition, due := voterStatus(node, voter, time.Now())
	if !due {
		return voter, nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return false, err
	}
	_, err = nodes.Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return voter && err == nil, err
}

func lacks(have, want map[string]string) bool {
	for key, value := range want {
		if have[key] != value {
			return true
		}
	}
	return false
}

// voterStatus returns the condition as K3s writes it, and whether it has to be written now.
func voterStatus(node *corev1.Node, voter bool, now time.Time) (corev1.NodeCondition, bool) {
	condition := corev1.NodeCondition{
		Type: voterCondition, Status: corev1.ConditionTrue, Reason: "MemberNotLearner",
		Message:           "Node is a voting member of the etcd cluster",
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if !voter {
		condition.Status, condition.Reason = corev1.ConditionFalse, "MemberIsLearner"
		condition.Message = "Node has not been promoted to voting member of the etcd cluster"
	}
	for _, old := range node.Status.Conditions {
		if old.Type == voterCondition && old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
			return condition, now.Sub(old.LastHeartbeatTime.Time) > heartbeat
		}
	}
	return condition, true
}
