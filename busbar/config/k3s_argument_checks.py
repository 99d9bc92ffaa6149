"""Checks of k3s.server_args and k3s.agent_args. Each yields `<path>: <what>. Fix: <what to do>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from busbar.config.errors import did_you_mean
from busbar.config.k3s_flags import FLAGS
from busbar.config.partial import PartialConfig

# Keys that busbar writes into config.yaml, with the setting that changes them.
_WRITTEN_KEYS: Mapping[str, str | None] = {
    "token-file": None,
    "agent-token-file": None,
    "server": None,
    "cluster-init": None,
    "node-name": "hosts",
    "tls-san": "k3s.tls_san",
    "cluster-cidr": "k3s.cluster_cidr",
    "service-cidr": "k3s.service_cidr",
    "flannel-backend": "k3s.flannel_backend",
    "disable": "k3s.disable",
    "secrets-encryption": None,
    "write-kubeconfig-mode": None,
    "etcd-snapshot-schedule-cron": "k3s.snapshots.schedule",
    "etcd-snapshot-retention": "k3s.snapshots.retention",
    "etcd-s3": "k3s.snapshots.s3",
    "etcd-s3-endpoint": "k3s.snapshots.s3.endpoint",
    "etcd-s3-bucket": "k3s.snapshots.s3.bucket",
    "etcd-s3-region": "k3s.snapshots.s3.region",
    "etcd-s3-folder": "k3s.snapshots.s3.folder",
    "node-label": "pools.<pool>.labels",
    "node-taint": "pools.<pool>.taints",
}
# On servers these two are free (to taint the control plane); busbar sets none there.
_FREE_ON_SERVERS = {"node-label", "node-taint"}


def written_keys(config: PartialConfig) -> Iterator[str]:
    """No key of config.yaml that busbar writes itself."""
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        if name in _WRITTEN_KEYS and not (setting == "server_args" and name in _FREE_ON_SERVERS):
            instead = _WRITTEN_KEYS[name]
            fix = f"use {instead}" if instead else "remove it"
            yield f"k3s.{setting}.{key}: busbar writes this key itself. Fix: {fix}"
    for argument in arguments_of(config.k3s.server_args, "kube-apiserver-arg"):
        if argument.lstrip("-").startswith("secure-port"):
            yield (
                f"k3s.server_args.kube-apiserver-arg: {argument!r}: load balancer, workers and scripts use "
                "port 6443. Fix: remove it"
            )
        if argument.startswith(("anonymous-auth", "authentication-config")):
            yield (
                f"k3s.server_args.kube-apiserver-arg: {argument!r} contradicts the "
                "AuthenticationConfiguration with which busbar opens /livez and /readyz. Fix: remove it"
            )


# Keys with which busbar's own steps fail, with the reason.
_SCRIPTS_USE = "the scripts of busbar use"
_BREAKING_KEYS: Mapping[str, str] = {
    "data-dir": f"{_SCRIPTS_USE} /var/lib/rancher/k3s",
    "https-listen-port": "load balancer, workers and scripts use port 6443",
    "supervisor-port": "servers, workers and scripts use port 6443",
    "apiserver-port": "load balancer, workers and scripts use port 6443",
    "flannel-external-ip": "pod traffic would leave through the external network",
    "vpn-auth": "it is a key, and K3s would use the addresses of that VPN",
    "vpn-auth-file": "K3s would use the addresses of that VPN",
    "bind-address": f"{_SCRIPTS_USE} 127.0.0.1:6443",
    "write-kubeconfig": f"{_SCRIPTS_USE} /etc/rancher/k3s/k3s.yaml",
    "datastore-endpoint": "servers run embedded etcd",
    "datastore-cafile": "servers run embedded etcd",
    "datastore-certfile": "servers run embedded etcd",
    "datastore-keyfile": "servers run embedded etcd",
    "config": "busbar writes config.yaml; put files of your own into config.yaml.d/",
    "with-node-id": "it changes the name of the node",
    "disable-agent": "a server without a Node never becomes Ready",
    "disable-etcd": "every server runs the whole control plane",
    "disable-apiserver": "every server runs the whole control plane",
    "disable-controller-manager": "every server runs the whole control plane",
    "disable-scheduler": "every server runs the whole control plane",
    "cluster-reset": "a reset is done by hand, once",
    "cluster-reset-restore-path": "a reset is done by hand, once",
    "log": "the scripts of busbar read the journal",
    "docker": "the operators configure K3s's own containerd",
    "container-runtime-endpoint": "the operators configure K3s's own containerd",
    "rootless": "K3s runs as root",
}
_BREAKING_KUBELET_ARGUMENTS: Mapping[str, str] = {
    "root-dir": f"{_SCRIPTS_USE} /var/lib/kubelet",
    "hostname-override": "it changes the name of the node",
    "register-node": "a host without a Node never becomes Ready",
}


def breaking_keys(config: PartialConfig) -> Iterator[str]:
    """No key of config.yaml, and no argument of the kubelet, with which busbar's own steps fail."""
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        if len(name) == 1:
            yield f"k3s.{setting}.{key}: is the short form of a flag. Fix: write its long name"
        elif reason := _BREAKING_KEYS.get(name):
            yield f"k3s.{setting}.{key}: is not supported: {reason}. Fix: remove it"
    for setting in FLAGS:
        for argument in arguments_of(getattr(config.k3s, setting), "kubelet-arg"):
            if reason := _BREAKING_KUBELET_ARGUMENTS.get(argument.partition("=")[0].strip("-")):
                yield f"k3s.{setting}.kubelet-arg: {argument!r} is not supported: {reason}. Fix: remove it"


def unknown_keys(config: PartialConfig) -> Iterator[str]:
    """No misspelt key: a server names it in its log and goes on without it, an agent does not start."""
    for setting, key in _unknown(config):
        if hint := did_you_mean(key.removesuffix("+"), FLAGS[setting]):
            yield f"k3s.{setting}.{key}: is not a flag of K3s{hint}"


def unknown_key_warnings(config: PartialConfig) -> Iterator[str]:
    """Keys that no known flag is similar to: a later release of K3s may have them."""
    for setting, key in _unknown(config):
        if not did_you_mean(key.removesuffix("+"), FLAGS[setting]):
            yield (
                f"k3s.{setting}.{key}: is not a flag of K3s 1.35. Fix: remove it, unless k3s.version has it: "
                "servers ignore an unknown flag, and agents do not start with it"
            )


def _unknown(config: PartialConfig) -> Iterator[tuple[str, str]]:
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        refused = len(name) == 1 or name in _BREAKING_KEYS or name in _WRITTEN_KEYS
        if not refused and name not in FLAGS[setting]:
            yield setting, key


# Mellanox/network-operator#1363.
_SHORT_TOKENS = "service-account-extend-token-expiration=false"


def token_lifetime(config: PartialConfig) -> Iterator[str]:
    """No tokens of an hour where the Network Operator runs Multus: its CNI plugin never gets a new one."""
    if not config.network_operator.secondary_networks:
        return
    for argument in arguments_of(config.k3s.server_args, "kube-apiserver-arg"):
        if argument.lstrip("-") == _SHORT_TOKENS:
            yield (
                f"k3s.server_args.kube-apiserver-arg: {argument!r} ends the token of Multus after an hour, "
                "and then no pod starts (network_operator.secondary_networks). Fix: remove one of the two"
            )


def _keys(config: PartialConfig) -> Iterator[tuple[str, str]]:
    return ((setting, key) for setting in FLAGS for key in getattr(config.k3s, setting))


def arguments_of(config: Mapping[str, Any], key: str) -> list[str]:
    """The values of an argument list such as kubelet-arg, also if it is a single value."""
    values = [config[name] for name in (key, f"{key}+") if config.get(name) is not None]
    return [str(each) for value in values for each in (value if isinstance(value, list) else [value])]
