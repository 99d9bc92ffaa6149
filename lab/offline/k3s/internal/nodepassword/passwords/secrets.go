// Package passwords keeps the nodes' passwords in the cluster, as K3s does: Secrets in kube-system that belong to
// their Nodes, so that the garbage collector deletes them with the Node (pkg/nodepassword/controller.go).
package passwords

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	secretType = "k3s.cattle.io/node-password"
	hashKey    = "hash"
)

// Secrets is a nodepassword.Store in the cluster.
type Secrets struct{ Client kubernetes.Interface }

// Get returns the hash in the Secret, or "" if there is no such Secret.
func (s Secrets) Get(ctx context.Context, name string) (string, error) {
	secret, err := s.Client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(secret.Data[hashKey]), nil
}

// Create makes the Secret; false if there is one of that name.
func (s Secrets) Create(ctx context.Context, name, hash string) (bool, error) {
	immutable := true
	_, err := s.Client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
		Immutable:  &immutable,
		Data:       map[string][]byte{hashKey: []byte(hash)},
		Type:       secretType,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}
