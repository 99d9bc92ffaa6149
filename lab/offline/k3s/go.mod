// The replacement of K3s. It is built from lab/go, whose go.mod has these modules at the same versions.
module busbar/lab/k3s

go 1.26.0

require (
	github.com/containerd/containerd/v2 v2.2.9
	github.com/klauspost/compress v1.18.7
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/vishvananda/netlink v1.3.1
	go.etcd.io/etcd/api/v3 v3.6.6
	go.etcd.io/etcd/client/v3 v3.6.6
	go.etcd.io/etcd/server/v3 v3.6.6
	go.uber.org/zap v1.28.0
	go.yaml.in/yaml/v2 v2.4.4
	golang.org/x/crypto v0.55.0
	k8s.io/api v0.35.6
	k8s.io/apimachinery v0.35.6
	k8s.io/apiserver v0.35.6
	k8s.io/client-go v0.35.6
	k8s.io/component-base v0.35.6
	k8s.io/kubectl v0.35.1
	k8s.io/kubernetes v1.35.0
	sigs.k8s.io/yaml v1.6.0
)
