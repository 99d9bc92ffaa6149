package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"busbar/lab/k3s/internal/etcd"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/secrets"
	"busbar/lab/k3s/internal/token"
)

const requestSoon = time.Second

// Encryption is the rotation of the key of Secrets as one server does it, with its own credentials. Dir is its
// <data-dir>/server.
type Encryption struct {
	NodeName, Dir string
	Client        kubernetes.Interface
}

// States are those of all servers, by the annotations of their Nodes.
func (e Encryption) States(ctx context.Context) (map[string]string, error) {
	list, err := e.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane=true"})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, node := range list.Items {
		if state, known := node.Annotations[secrets.Annotation]; known {
			found[node.Name] = state
		}
	}
	return found, nil
}

// Check refuses a stage that may not begin now.
func (e Encryption) Check(ctx context.Context, stage string) error {
	states, err := e.States(ctx)
	if err != nil {
		return err
	}
	return secrets.Check(e.Dir, stage, e.NodeName, states)
}

// Advance does one stage on this server: its files, its Node's annotation, and the files in etcd, from where the other
// servers take them when they restart.
func (e Encryption) Advance(ctx context.Context, stage string) error {
	state, err := secrets.Advance(e.Dir, stage, time.Now())
	if err != nil {
		return err
	}
	if err := e.annotate(ctx, state); err != nil {
		return err
	}
	password, err := token.ReadServerFile(e.Dir)
	if err != nil {
		return err
	}
	instance := etcd.Instance{ServerDir: e.Dir}
	client, err := instance.Client()
	if err != nil {
		return err
	}
	return errors.Join(instance.Save(ctx, client, password), client.Close())
}

// RequestReencryption has the running server write all Secrets anew, and returns at once.
func (e Encryption) RequestReencryption(ctx context.Context) error {
	if err := e.Check(ctx, secrets.Active); err != nil {
		return err
	}
	state, err := secrets.Request(e.Dir)
	if err != nil {
		return err
	}
	return e.annotate(ctx, state)
}

func (e Encryption) annotate(ctx context.Context, state string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, secrets.Annotation, state)
	_, err := e.Client.CoreV1().Nodes().Patch(ctx, e.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// reencryptOnRequest does what was requested until the server ends. A restart returns to the stage before, as in K3s,
// which keeps the stage reencrypt_active in the annotation alone.
func (s *Server) reencryptOnRequest(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		return err
	}
	e := Encryption{NodeName: s.cfg.NodeName, Dir: s.dir(), Client: client}
	for failed := false; ; {
		if !failed && secrets.IsRequested(e.Dir) {
			if err := e.reencrypt(ctx); err != nil {
				// K3s tries no second time and stays in its stage: its users see this event only.
				failed = true
				logx.Infof("Event(Node %s): type: 'Warning' reason: 'SecretsUpdateError' failed to update secret: %v", e.NodeName, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(requestSoon):
		}
	}
}

// reencrypt writes every Secret once, with the new key, and drops the old one. Like K3s it fails where a Secret was
// deleted in the meantime (pkg/server/handlers/secrets-encrypt.go, updateSecrets).
func (e Encryption) reencrypt(ctx context.Context) error {
	pages := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return e.Client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, options)
	}))
	pages.PageSize = 20
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		secret := object.(*corev1.Secret)
		_, err := e.Client.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := e.Advance(ctx, secrets.Finished); err != nil {
		return err
	}
	return secrets.Forget(e.Dir)
}
