# ruff: noqa: SIM905 (a list of words reads better than one of strings)
"""Checks of k3s.server_args and k3s.agent_args. Each yields findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from busbar.config.errors import Finding, did_you_mean
from busbar.config.partial import PartialConfig

# Flags of K3s 1.34 and 1.35, which are the keys of config.yaml (k3s-io/k3s pkg/cli/cmds), by the setting that
# they are given in: of `k3s server`, and of `k3s agent`.
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
# Keys that busbar writes into config.yaml, with the setting that changes them.
_WRITTEN_KEYS: Mapping[str, str | None] = {
    **dict.fromkeys(("token-file", "agent-token-file", "server", "cluster-init")),
    "node-name": "hosts",
    "tls-san": "k3s.tls_san",
    **{key: f"k3s.{key.replace('-', '_')}" for key in ("cluster-cidr", "service-cidr", "flannel-backend")},
    "disable": "k3s.disable",
    **dict.fromkeys(("secrets-encryption", "write-kubeconfig-mode")),
    "etcd-snapshot-schedule-cron": "k3s.snapshots.schedule",
    "etcd-snapshot-retention": "k3s.snapshots.retention",
    "etcd-s3": "k3s.snapshots.s3",
    **{f"etcd-s3-{key}": f"k3s.snapshots.s3.{key}" for key in ("endpoint", "bucket", "region", "folder")},
    "node-label": "pools.<pool>.labels",
    "node-taint": "pools.<pool>.taints",
}
# On servers these two are free (to taint the control plane); busbar sets none there.
_FREE_ON_SERVERS = {"node-label", "node-taint"}


def written_keys(config: PartialConfig) -> Iterator[Finding]:
    """Refuse keys of config.yaml that busbar writes itself."""
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        if name in _WRITTEN_KEYS and not (setting == "server_args" and name in _FREE_ON_SERVERS):
            instead = _WRITTEN_KEYS[name]
            fix = f"use {instead}" if instead else "remove it"
            yield Finding(("k3s", setting, key), "busbar writes this key itself", fix)
    for argument in arguments_of(config.k3s.server_args, "kube-apiserver-arg"):
        option, _ = parsed(argument)
        if option == "secure-port":
            text = f"{argument!r}: load balancer, workers and scripts use port 6443"
            yield Finding(("k3s", "server_args", "kube-apiserver-arg"), text, "remove it")
        if option in ("anonymous-auth", "authentication-config"):
            text = "contradicts the AuthenticationConfiguration with which busbar opens /livez and /readyz"
            yield Finding(("k3s", "server_args", "kube-apiserver-arg"), text, "remove it", repr(argument))
        if option.startswith("oidc-"):
            yield Finding(
                ("k3s", "server_args", "kube-apiserver-arg"),
                f"{argument!r}: the API server does not start with it beside an AuthenticationConfiguration",
                "use k3s.authentication.jwt",
            )


# Keys with which busbar's own steps fail, with the reason.
_SCRIPTS_USE = "the scripts of busbar use"
_API_PORT = "load balancer, workers and scripts use port 6443"
_EMBEDDED = "servers run embedded etcd"
_VPN = "K3s would use the addresses of that VPN"
_CONTAINERD = "the operators configure K3s's own containerd"
_BREAKING_KEYS: Mapping[str, str] = {
    "data-dir": f"{_SCRIPTS_USE} /var/lib/rancher/k3s",
    **dict.fromkeys(("https-listen-port", "supervisor-port", "apiserver-port"), _API_PORT),
    "flannel-external-ip": "pod traffic would leave through the external network",
    "vpn-auth": f"it is a key, and {_VPN}",
    "vpn-auth-file": _VPN,
    "bind-address": f"{_SCRIPTS_USE} 127.0.0.1:6443",
    "write-kubeconfig": f"{_SCRIPTS_USE} /etc/rancher/k3s/k3s.yaml",
    **{f"datastore-{key}": _EMBEDDED for key in ("endpoint", "cafile", "certfile", "keyfile")},
    "config": "busbar writes config.yaml; put files of your own into config.yaml.d/",
    "with-node-id": "it changes the name of the node",
    "disable-agent": "a server without a Node never becomes Ready",
    **{
        f"disable-{part}": "every server runs the whole control plane"
        for part in ("etcd", "apiserver", "controller-manager", "scheduler")
    },
    **dict.fromkeys(("cluster-reset", "cluster-reset-restore-path"), "a reset is done by hand, once"),
    "log": "the scripts of busbar read the journal",
    **dict.fromkeys(("docker", "container-runtime-endpoint"), _CONTAINERD),
    "rootless": "K3s runs as root",
}
_BREAKING_KUBELET_ARGUMENTS: Mapping[str, str] = {
    "root-dir": f"{_SCRIPTS_USE} /var/lib/kubelet",
    "hostname-override": "it changes the name of the node",
    "register-node": "a host without a Node never becomes Ready",
}


def breaking_keys(config: PartialConfig) -> Iterator[Finding]:
    """Refuse keys of config.yaml and arguments of the kubelet with which busbar's own steps fail."""
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        if len(name) == 1:
            yield Finding(("k3s", setting, key), "is the short form of a flag", "write its long name")
        elif reason := _BREAKING_KEYS.get(name):
            yield Finding(("k3s", setting, key), f"is not supported: {reason}", "remove it")
    for setting in FLAGS:
        for argument in arguments_of(getattr(config.k3s, setting), "kubelet-arg"):
            if reason := _BREAKING_KUBELET_ARGUMENTS.get(parsed(argument)[0]):
                text = f"is not supported: {reason}"
                yield Finding(("k3s", setting, "kubelet-arg"), text, "remove it", repr(argument))


# K3s splits it in this way (pkg/daemons/config/types.go); without a value it is "true".
_ARGUMENT = re.compile(r"(--)?[A-Za-z0-9][\w.-]*(=.*)?", re.DOTALL)


def arguments(config: PartialConfig) -> Iterator[Finding]:
    """Check that arguments of K3s's components are NAME=VALUE: with any other name they do not start."""
    for setting, key in _keys(config):
        if key.removesuffix("+").endswith("-arg"):
            for argument in arguments_of({key: getattr(config.k3s, setting)[key]}, key):
                if not _ARGUMENT.fullmatch(argument):
                    yield Finding(
                        ("k3s", setting, key), "is not NAME=VALUE, such as v=2", found=repr(argument)
                    )


def unknown_keys(config: PartialConfig) -> Iterator[Finding]:
    """Refuse misspelt keys: a server logs and ignores them, and an agent does not start."""
    for setting, key in _unknown(config):
        if setting == "agent_args" and key.removesuffix("+") in FLAGS["server_args"]:
            yield Finding(("k3s", setting, key), "is a flag of servers only", "use k3s.server_args")
        elif hint := did_you_mean(key.removesuffix("+").lower(), FLAGS[setting]):
            yield Finding(("k3s", setting, key), f"is not a flag of K3s{hint}")


def unknown_key_warnings(config: PartialConfig) -> Iterator[Finding]:
    """Warn of keys that are not similar to any known flag: a later release of K3s may have them."""
    for setting, key in _unknown(config):
        if not did_you_mean(key.removesuffix("+").lower(), FLAGS[setting]):
            yield Finding(
                ("k3s", setting, key),
                "is not a flag of K3s 1.35",
                "remove it, unless k3s.version has it: servers ignore an unknown flag, and "
                "agents do not start with it",
            )


def _unknown(config: PartialConfig) -> Iterator[tuple[str, str]]:
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        refused = len(name) == 1 or name in _BREAKING_KEYS or name in _WRITTEN_KEYS
        if not refused and name not in FLAGS[setting]:
            yield setting, key


# Mellanox/network-operator#1363.
_SHORT_TOKENS = ("service-account-extend-token-expiration", "false")


def token_lifetime(config: PartialConfig) -> Iterator[Finding]:
    """Refuse one-hour tokens where the Network Operator runs Multus: its CNI plugin never gets a new one."""
    if not config.network_operator.secondary_networks:
        return
    for argument in arguments_of(config.k3s.server_args, "kube-apiserver-arg"):
        if parsed(argument) == _SHORT_TOKENS:
            yield Finding(
                ("k3s", "server_args", "kube-apiserver-arg"),
                "ends the token of Multus after an hour, and then no pod starts "
                "(network_operator.secondary_networks)",
                "remove one of the two",
                repr(argument),
            )


def _keys(config: PartialConfig) -> Iterator[tuple[str, str]]:
    return ((setting, key) for setting in FLAGS for key in getattr(config.k3s, setting))


def arguments_of(config: Mapping[str, Any], key: str) -> list[str]:
    """The values of an argument list such as kubelet-arg, also if it is a single value."""
    values = [config[name] for name in (key, f"{key}+") if config.get(name) is not None]
    return [str(each) for value in values for each in (value if isinstance(value, list) else [value])]


def parsed(argument: str) -> tuple[str, str]:
    """Name and value of an argument of such a list."""
    name, _, value = argument.removeprefix("--").partition("=")
    return name, value
