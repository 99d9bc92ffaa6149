package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"busbar/lab/k3s/internal/config"
	"busbar/lab/k3s/internal/etcd"
	"busbar/lab/k3s/internal/join"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/secrets"
	"busbar/lab/k3s/internal/token"
)

const rotationTimeout = 10 * time.Minute

// runRotation is `k3s certificate rotate`, `k3s token rotate` and `k3s secrets-encrypt ...`.
func runRotation(run func(context.Context, *config.Config, []string) error, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, rotationTimeout)
	defer cancel()
	c, _, err := config.Parse("server", nil)
	if err == nil {
		err = run(ctx, c, args)
	}
	if err != nil {
		logx.Fatalf("Error: %v", err)
		return 1
	}
	return 0
}

// rotateCertificates removes what the next start issues anew; the authorities stay.
func rotateCertificates(_ context.Context, c *config.Config, args []string) error {
	if len(args) != 1 || args[0] != "rotate" {
		return fmt.Errorf("certificate has no action %q: it has rotate", args)
	}
	backup, err := pki.RemoveLeaves(c.DataDir, time.Now())
	if err != nil {
		return err
	}
	logx.Infof("Successfully backed up certificates to %s, please restart k3s server or agent to rotate certificates", backup)
	return nil
}

// rotateToken is `k3s token rotate [--token OLD] --new-token NEW`.
func rotateToken(ctx context.Context, c *config.Config, args []string) error {
	if len(args) == 0 || args[0] != "rotate" {
		return fmt.Errorf("token has no action %q: it has rotate", args)
	}
	flags := flag.NewFlagSet("token rotate", flag.ContinueOnError)
	old := flags.String("token", os.Getenv("K3S_TOKEN"), "the token of now")
	new := flags.String("new-token", "", "the next token")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *old == "" {
		raw, err := os.ReadFile(filepath.Join(c.DataDir, "server", "token"))
		if err != nil {
			return err
		}
		*old = strings.TrimSpace(string(raw))
	}
	given, err := token.Parse(*new)
	if err != nil {
		return err
	}
	access, err := join.Connect(ctx, fmt.Sprintf("https://127.0.0.1:%d", c.Port), *old, true)
	if err != nil {
		return err
	}
	if err := access.RotateToken(ctx, given.Password); err != nil {
		return err
	}
	fmt.Println("Token rotated, restart k3s nodes with new token")
	return nil
}

// encryption is `k3s secrets-encrypt`, run on a server by root, with this server's own credentials.
type encryption struct {
	config *config.Config
	dir    string
	client *kubernetes.Clientset
}

func rotateEncryption(ctx context.Context, c *config.Config, args []string) error {
	e := encryption{config: c, dir: filepath.Join(c.DataDir, "server")}
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(e.dir, "cred", "admin.kubeconfig"))
	if err != nil {
		return err
	}
	if e.client, err = kubernetes.NewForConfig(admin); err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"status"}
	}
	switch args[0] {
	case "status":
		return e.status(ctx, strings.Contains(strings.Join(args[1:], " "), "json"))
	case "prepare", "rotate":
		if err := e.advance(ctx, args[0], args[0]); err != nil {
			return err
		}
		fmt.Println(args[0], "completed successfully")
		return nil
	case "reencrypt":
		if err := e.reencrypt(ctx); err != nil {
			return err
		}
		fmt.Println("reencryption started")
		return nil
	}
	return fmt.Errorf("secrets-encrypt has no action %q: it has status, prepare, rotate and reencrypt", args[0])
}

// states are those of all servers, by the annotations of their Nodes.
func (e encryption) states(ctx context.Context) (map[string]string, error) {
	list, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane=true"})
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

func (e encryption) status(ctx context.Context, asJSON bool) error {
	list, err := secrets.Keys(e.dir)
	if err != nil {
		return err
	}
	states, err := e.states(ctx)
	if err != nil {
		return err
	}
	stage, _, _ := strings.Cut(states[e.config.NodeName], "-")
	hashes, mismatch := "All hashes match", ""
	if err := secrets.Match(states); err != nil {
		hashes, mismatch = err.Error(), err.Error()
	}
	var inactive []string
	for _, key := range list[1:] {
		inactive = append(inactive, "AES-CBC "+key.Name)
	}
	if asJSON {
		raw, err := json.MarshalIndent(struct {
			Stage        string   `json:"stage"`
			ActiveKey    string   `json:"activekey"`
			Enable       bool     `json:"enable"`
			HashMatch    bool     `json:"hashmatch,omitempty"`
			HashError    string   `json:"hasherror,omitempty"`
			InactiveKeys []string `json:"inactivekeys,omitempty"`
		}{stage, "AES-CBC " + list[0].Name, true, mismatch == "", mismatch, inactive}, "", "\t")
		fmt.Println(string(raw))
		return err
	}
	fmt.Printf("Encryption Status: Enabled\nCurrent Rotation Stage: %s\nServer Encryption Hashes: %s\n", stage, hashes)
	fmt.Printf("\nActive  Key Type  Name\n------  --------  ----\n *      AES-CBC   %s\n", list[0].Name)
	for _, key := range list[1:] {
		fmt.Printf("        AES-CBC   %s\n", key.Name)
	}
	return nil
}

// advance does one stage on this server: its files, its Node's annotation, and the files in etcd, from where the other
// servers take them when they restart.
func (e encryption) advance(ctx context.Context, stage, requested string) error {
	states, err := e.states(ctx)
	if err != nil {
		return err
	}
	if requested != "" {
		if err := secrets.Check(e.dir, requested, e.config.NodeName, states); err != nil {
			return err
		}
	}
	state, err := secrets.Advance(e.dir, stage, time.Now())
	if err != nil {
		return err
	}
	if err := e.annotate(ctx, state); err != nil {
		return err
	}
	password, err := token.ReadServerFile(e.dir)
	if err != nil {
		return err
	}
	instance := etcd.Instance{ServerDir: e.dir}
	client, err := instance.Client()
	if err != nil {
		return err
	}
	return errors.Join(instance.Save(ctx, client, password), client.Close())
}

func (e encryption) annotate(ctx context.Context, state string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, secrets.Annotation, state)
	_, err := e.client.CoreV1().Nodes().Patch(ctx, e.config.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// reencrypt writes every Secret once, with the new key, and drops the old one. K3s does it after its command has ended.
func (e encryption) reencrypt(ctx context.Context) error {
	states, err := e.states(ctx)
	if err != nil {
		return err
	}
	if err := secrets.Check(e.dir, secrets.Active, e.config.NodeName, states); err != nil {
		return err
	}
	list, err := e.client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, secret := range list.Items {
		if err := e.write(ctx, secret.Namespace, secret.Name); err != nil {
			return fmt.Errorf("failed to update secret: %w", err)
		}
	}
	return e.advance(ctx, secrets.Finished, "")
}

func (e encryption) write(ctx context.Context, namespace, name string) error {
	api := e.client.CoreV1().Secrets(namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		secret, err := api.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			_, err = api.Update(ctx, secret, metav1.UpdateOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
