package passwords

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/nodepassword"
)

const (
	resync         = time.Minute
	retry          = 5 * time.Second
	orphanAge      = 10 * time.Minute
	callTimeout    = 10 * time.Second
	eventNamespace = "default" // the namespace of events about Nodes
)

// Follow makes each Secret belong to its Node and deletes those that never got a Node, until ctx ends. Every server
// does so; who comes second finds nothing to do.
func Follow(ctx context.Context, client kubernetes.Interface) error {
	nodes := informers.NewSharedInformerFactory(client, 0)
	secrets := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", secretType).String()
		}))
	nodeInformer, secretInformer := nodes.Core().V1().Nodes().Informer(), secrets.Core().V1().Secrets().Informer()
	changed := make(chan struct{}, 1)
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{nodeInformer, secretInformer} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: poke}); err != nil {
			return err
		}
	}
	nodes.Start(ctx.Done())
	secrets.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodeInformer.HasSynced, secretInformer.HasSynced) {
		return nil
	}
	for {
		known := map[string]*corev1.Node{}
		for _, item := range nodeInformer.GetStore().List() {
			node := item.(*corev1.Node)
			known[nodepassword.SecretName(node.Name)] = node
		}
		for _, item := range secretInformer.GetStore().List() {
			if err := settle(ctx, client, item.(*corev1.Secret), known); err != nil && ctx.Err() == nil {
				logx.Errorf("Node password secret: %v", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(resync):
		}
	}
}

func settle(ctx context.Context, client kubernetes.Interface, secret *corev1.Secret, nodes map[string]*corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	api := client.CoreV1().Secrets(secret.Namespace)
	var err error
	switch node := nodes[secret.Name]; {
	case node == nil && isOrphan(secret, time.Now()):
		uid := secret.UID
		err = api.Delete(ctx, secret.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err == nil {
			logx.Warnf("Deleted orphaned node-password secret %s", secret.Name)
		}
	case node != nil && !belongsTo(secret, node):
		owned := secret.DeepCopy()
		owned.OwnerReferences = append(owned.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		})
		_, err = api.Update(ctx, owned, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another server was first
	}
	return err
}

// isOrphan: a machine asks for certificates before its Node exists, so a young Secret may still get one.
func isOrphan(secret *corev1.Secret, now time.Time) bool {
	return now.Sub(secret.CreationTimestamp.Time) > orphanAge
}

func belongsTo(secret *corev1.Secret, node *corev1.Node) bool {
	for _, owner := range secret.OwnerReferences {
		if owner.Kind == "Node" && owner.UID == node.UID {
			return true
		}
	}
	return false
}

// EnsureOwn stores a server's own password once its apiserver runs. The server is a member by then, so a password
// that is refused only makes an event, as in K3s.
func EnsureOwn(ctx context.Context, client kubernetes.Interface, node, file string) error {
	password, err := nodepassword.Local(file)
	if err != nil {
		return err
	}
	for {
		err := nodepassword.Ensure(ctx, Secrets{client}, node, password)
		if err == nil {
			return nil
		}
		text := fmt.Sprintf("Deferred node password secret validation failed: %v", err)
		if errors.Is(err, nodepassword.ErrRefused) {
			logx.Warnf("Node %s: %s", node, text)
			return warn(ctx, client, node, text)
		}
		logx.Debugf("Node %s: %s", node, text)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

func warn(ctx context.Context, client kubernetes.Interface, node, text string) error {
	now := metav1.Now()
	_, err := client.CoreV1().Events(eventNamespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: node + ".", Namespace: eventNamespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)},
		Reason:         "NodePasswordValidationFailed", Message: text, Type: corev1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: "k3s-supervisor"},
	}, metav1.CreateOptions{})
	return err
}
