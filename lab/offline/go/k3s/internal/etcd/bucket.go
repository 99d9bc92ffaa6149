package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sort"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"busbar/lab/k3s/internal/logx"
)

// Bucket is where snapshots are also kept (etcd-s3-*), as in pkg/etcd/s3/s3.go.
type Bucket struct {
	Endpoint, Name, Region, Folder string
	AccessKey, SecretKey           string
	Insecure, SkipVerify           bool
	Timeout                        time.Duration
}

func (b Bucket) client(ctx context.Context) (*minio.Client, error) {
	if b.Name == "" {
		return nil, fmt.Errorf("s3 bucket name was not set")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if b.SkipVerify {
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // etcd-s3-skip-ssl-verify
	}
	client, err := minio.New(b.Endpoint, &minio.Options{
		Creds:  credentials.NewStaticV4(b.AccessKey, b.SecretKey, ""),
		Secure: !b.Insecure, Region: b.Region, Transport: transport,
	})
	if err != nil {
		return nil, err
	}
	exists, err := client.BucketExists(ctx, b.Name)
	if err != nil {
		return nil, fmt.Errorf("failed to test for existence of bucket %s: %w", b.Name, err)
	}
	if !exists {
		return nil, fmt.Errorf("bucket %s does not exist", b.Name)
	}
	return client, nil
}

func (b Bucket) key(name string) string { return path.Join(b.Folder, name) }

// Upload copies a snapshot's file to the bucket.
func (b Bucket) Upload(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	client, err := b.client(ctx)
	if err != nil {
		return err
	}
	key := b.key(filepath.Base(file))
	logx.Infof("Uploading snapshot to s3://%s/%s", b.Name, key)
	_, err = client.FPutObject(ctx, b.Name, key, file, minio.PutObjectOptions{ContentType: "application/octet-stream"})
	return err
}

// List returns the bucket's snapshots, oldest first; their paths are s3://BUCKET/KEY.
func (b Bucket) List(ctx context.Context) ([]Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	client, err := b.client(ctx)
	if err != nil {
		return nil, err
	}
	var list []Snapshot
	for object := range client.ListObjects(ctx, b.Name, minio.ListObjectsOptions{Prefix: b.Folder, Recursive: true}) {
		if object.Err != nil {
			return nil, object.Err
		}
		if object.Size > 0 {
			list = append(list, Snapshot{
				Name: path.Base(object.Key), Path: "s3://" + path.Join(b.Name, object.Key), Size: object.Size, Created: object.LastModified,
			})
		}
	}
	sort.Slice(list, func(x, y int) bool { return list[x].Created.Before(list[y].Created) })
	return list, nil
}

// Download fetches a snapshot into a folder and returns its path.
func (b Bucket) Download(ctx context.Context, name, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	client, err := b.client(ctx)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(name))
	logx.Infof("Retrieving etcd snapshot %s from S3", name)
	if err := client.FGetObject(ctx, b.Name, b.key(name), file, minio.GetObjectOptions{}); err != nil {
		return "", err
	}
	return file, os.Chmod(file, 0o600)
}
