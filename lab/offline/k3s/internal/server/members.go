package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"busbar/lab/k3s/internal/logx"
)

const (
	removeRequest = "etcd.k3s.cattle.io/remove"
	removedName   = "etcd.k3s.cattle.io/removed-node-name"
	resyncMembers = 30 * time.Second
)

// followMembers takes a server out of etcd when its Node is deleted or asks for it by annotation,
// as K3s does (pkg/etcd/member_controller.go). Every server watches; the first one to see it removes the member.
func (s *Server) followMembers(ctx context.Context, etcdClient *clientv3.Client) error {
	client, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, resyncMembers,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "node-role.kubernetes.io/etcd=true" }))
	asked := func(object any) {
		node := object.(*corev1.Node)
		if node.Annotations[removeRequest] != "true" || node.Annotations[removedName] != "" {
			return
		}
		if err := s.removeAsked(ctx, client, etcdClient, node); err != nil {
			logx.Errorf("Failed to remove etcd member of %s: %v", node.Name, err)
		}
	}
	deleted := func(object any) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		node, ok := object.(*corev1.Node)
		if !ok {
			return
		}
		if err := s.removeMember(ctx, etcdClient, node.Annotations[memberName]); err != nil {
			logx.Errorf("Failed to remove etcd member of deleted node %s: %v", node.Name, err)
		}
	}
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: asked, UpdateFunc: func(_, new any) { asked(new) }, DeleteFunc: deleted,
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

func (s *Server) removeAsked(ctx context.Context, client kubernetes.Interface, etcdClient *clientv3.Client, node *corev1.Node) error {
	name := node.Annotations[memberName]
	if err := s.removeMember(ctx, etcdClient, name); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, removedName, name)
	_, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// removeMember removes the member of that name; a missing member is not an error.
func (s *Server) removeMember(ctx context.Context, client *clientv3.Client, name string) error {
	if name == "" {
		return nil // never was a member
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	if len(list.Members) == 1 && list.Members[0].Name == name {
		return errors.New("it is the only member")
	}
	for _, m := range list.Members {
		if m.Name != name {
			continue
		}
		if _, err := client.MemberRemove(ctx, m.ID); err != nil {
			return err
		}
		logx.Infof("Removed etcd member %s", name)
	}
	return nil
}
