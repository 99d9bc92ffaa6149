"""Checks of k3s.server_args and k3s.agent_args. Each yields findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from busbar.config.errors import Finding
from busbar.config.partial import PartialConfig

_SETTINGS = ("server_args", "agent_args")
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
        if reason := _BREAKING_KEYS.get(name):
            yield Finding(("k3s", setting, key), f"is not supported: {reason}", "remove it")
    for setting in _SETTINGS:
        for argument in arguments_of(getattr(config.k3s, setting), "kubelet-arg"):
            if reason := _BREAKING_KUBELET_ARGUMENTS.get(parsed(argument)[0]):
                text = f"is not supported: {reason}"
                yield Finding(("k3s", setting, "kubelet-arg"), text, "remove it", repr(argument))


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
    return ((setting, key) for setting in _SETTINGS for key in getattr(config.k3s, setting))


def arguments_of(config: Mapping[str, Any], key: str) -> list[str]:
    """The values of an argument list such as kubelet-arg, also if it is a single value."""
    values = [config[name] for name in (key, f"{key}+") if config.get(name) is not None]
    return [str(each) for value in values for each in (value if isinstance(value, list) else [value])]


def parsed(argument: str) -> tuple[str, str]:
    """Name and value of an argument of such a list."""
    name, _, value = argument.removeprefix("--").partition("=")
    return name, value
