package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"busbar/lab/k3s/internal/config"
	"busbar/lab/k3s/internal/join"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/pki"
	"busbar/lab/k3s/internal/secrets"
	"busbar/lab/k3s/internal/server"
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

// rotateEncryption is `k3s secrets-encrypt`, run on a server by root, with this server's own credentials.
func rotateEncryption(ctx context.Context, c *config.Config, args []string) error {
	dir := filepath.Join(c.DataDir, "server")
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "cred", "admin.kubeconfig"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	e := server.Encryption{NodeName: c.NodeName, Dir: dir, Client: client}
	if len(args) == 0 {
		args = []string{"status"}
	}
	switch args[0] {
	case "status":
		return encryptionStatus(ctx, e, strings.Contains(strings.Join(args[1:], " "), "json"))
	case "prepare", "rotate":
		if err := e.Check(ctx, args[0]); err != nil {
			return err
		}
		if err := e.Advance(ctx, args[0]); err != nil {
			return err
		}
		fmt.Println(args[0], "completed successfully")
		return nil
	case "reencrypt":
		if err := e.RequestReencryption(ctx); err != nil {
			return err
		}
		fmt.Println("reencryption started")
		return nil
	}
	return fmt.Errorf("secrets-encrypt has no action %q: it has status, prepare, rotate and reencrypt", args[0])
}

func encryptionStatus(ctx context.Context, e server.Encryption, asJSON bool) error {
	list, err := secrets.Keys(e.Dir)
	if err != nil {
		return err
	}
	states, err := e.States(ctx)
	if err != nil {
		return err
	}
	stage, _, _ := strings.Cut(states[e.NodeName], "-")
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
