# ruff: noqa: SIM905 (a list of words reads better than one of strings)
"""The flags of K3s 1.34 and 1.35, which are the keys of config.yaml (k3s-io/k3s pkg/cli/cmds)."""

from __future__ import annotations

from collections.abc import Mapping

# By the setting that they are given in: of `k3s server`, and of `k3s agent`.
FLAGS: Mapping[str, frozenset[str]] = {
    "server_args": frozenset(
        """
    advertise-address advertise-port agent-token agent-token-file airgap-extra-registry alsologtostderr
    apiserver-bind-address apiserver-port bind-address cluster-cidr cluster-dns cluster-domain
    cluster-init cluster-reset cluster-reset-restore-path config container-runtime-endpoint data-dir
    datastore-cafile datastore-certfile datastore-endpoint datastore-keyfile debug
    default-local-storage-path default-runtime disable disable-agent disable-apiserver
    disable-cloud-controller disable-controller-manager disable-default-registry-endpoint disable-etcd
    disable-helm-controller disable-kube-proxy disable-network-policy disable-scheduler docker
    egress-selector-mode embedded-registry enable-pprof etcd-arg etcd-disable-snapshots
    etcd-expose-metrics etcd-s3 etcd-s3-access-key etcd-s3-bucket etcd-s3-bucket-lookup-type
    etcd-s3-config-secret etcd-s3-endpoint etcd-s3-endpoint-ca etcd-s3-folder etcd-s3-insecure
    etcd-s3-proxy etcd-s3-region etcd-s3-retention etcd-s3-secret-key etcd-s3-session-token
    etcd-s3-skip-ssl-verify etcd-s3-timeout etcd-snapshot-compress etcd-snapshot-dir etcd-snapshot-name
    etcd-snapshot-reconcile-interval etcd-snapshot-retention etcd-snapshot-schedule-cron flannel-backend
    flannel-cni-conf flannel-conf flannel-external-ip flannel-iface flannel-ipv6-masq helm-job-image
    https-listen-port image-credential-provider-bin-dir image-credential-provider-config
    image-service-endpoint kine-tls kube-apiserver-arg kube-cloud-controller-arg
    kube-cloud-controller-manager-arg kube-controller-arg kube-controller-manager-arg kube-proxy-arg
    kube-scheduler-arg kubelet-arg lb-server-port log node-external-dns node-external-ip node-internal-dns
    node-ip node-label node-name node-taint nonroot-devices pause-image prefer-bundled-bin
    private-registry protect-kernel-defaults resolv-conf rootless secrets-encryption
    secrets-encryption-provider selinux server service-cidr service-node-port-range servicelb-namespace
    snapshotter supervisor-metrics supervisor-port system-default-registry tls-san tls-san-security token
    token-file vmodule vpn-auth vpn-auth-file with-node-id write-kubeconfig write-kubeconfig-group
    write-kubeconfig-mode
""".split()
    ),
    "agent_args": frozenset(
        """
    airgap-extra-registry alsologtostderr bind-address config container-runtime-endpoint data-dir debug
    default-runtime disable-apiserver-lb disable-default-registry-endpoint docker enable-pprof
    flannel-cni-conf flannel-conf flannel-iface image-credential-provider-bin-dir
    image-credential-provider-config image-service-endpoint kube-proxy-arg kubelet-arg lb-server-port log
    node-external-dns node-external-ip node-internal-dns node-ip node-label node-name node-taint
    nonroot-devices pause-image prefer-bundled-bin private-registry protect-kernel-defaults resolv-conf
    rootless selinux server snapshotter token token-file vmodule vpn-auth vpn-auth-file with-node-id
""".split()
    ),
}
