// Package cluster is a small client of the Kubernetes API for a pod: the calls that an operator of
// two kinds needs, without client-go.
package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	account     = "/var/run/secrets/kubernetes.io/serviceaccount"
	manager     = "busbar-lab-operator"
	callTimeout = 10 * time.Second
)

// ErrNotFound is what Get returns for an object, or a kind, that is not there.
var ErrNotFound = errors.New("not found")

// Client makes calls to one API server.
type Client struct {
	Server string
	HTTP   *http.Client
	Token  func() (string, error)
}

// InPod uses what Kubernetes mounts into every pod.
func InPod() (*Client, error) {
	authority, err := os.ReadFile(account + "/ca.crt")
	if err != nil {
		return nil, fmt.Errorf("not in a pod with a service account: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s/ca.crt holds no certificate", account)
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	return &Client{
		Server: "https://" + net.JoinHostPort(host, port),
		HTTP: &http.Client{
			Timeout:   callTimeout,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
		},
		Token: func() (string, error) { // read anew: the kubelet renews it
			token, err := os.ReadFile(account + "/token")
			return string(token), err
		},
	}, nil
}

// Get reads an object or a list into `into`.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, "", nil, into)
}

// Apply creates or changes an object by server-side apply.
func (c *Client) Apply(ctx context.Context, path string, object any) error {
	path += "?force=true&fieldManager=" + manager
	return c.call(ctx, http.MethodPatch, path, "application/apply-patch+yaml", object, nil)
}

// Create makes an object in the collection `path`.
func (c *Client) Create(ctx context.Context, path string, object any) error {
	return c.call(ctx, http.MethodPost, path, "application/json", object, nil)
}

// Replace writes an object that was read before; it fails if the object has changed since.
func (c *Client) Replace(ctx context.Context, path string, object any) error {
	return c.call(ctx, http.MethodPut, path, "application/json", object, nil)
}

// Merge changes some fields of an object.
func (c *Client) Merge(ctx context.Context, path string, fields any) error {
	return c.call(ctx, http.MethodPatch, path, "application/merge-patch+json", fields, nil)
}

// Delete removes an object; a missing object is not an error.
func (c *Client) Delete(ctx context.Context, path string) error {
	err := c.call(ctx, http.MethodDelete, path, "", nil, nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (c *Client) call(ctx context.Context, method, path, kind string, body, into any) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Server+path, sent)
	if err != nil {
		return err
	}
	token, err := c.Token()
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	answer, err := c.HTTP.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, ErrNotFound)
	case answer.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %.300s", method, path, answer.Status, text)
	case into != nil:
		return json.Unmarshal(text, into)
	}
	return nil
}
