"""Checks across versions, downloads and the measurement, as `<path>: <what>; <what to do>`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from busbar import versions as known
from busbar.config.draft import Draft
from busbar.config.errors import did_you_mean
from busbar.nccl.expected import profiles


def versions(draft: Draft) -> Iterator[str]:
    """No combination that is known not to work; chart versions as the repository writes them."""
    for finding in judged(draft):
        if finding.level == "error":
            yield f"{finding.where}: {finding.text}"
    gpu, network = draft.gpu_operator, draft.network_operator
    if gpu.repository_url == known.NVIDIA_CHARTS and not gpu.version.startswith("v"):
        yield f"gpu_operator.version: {gpu.version!r} lacks the v of this chart's versions: 'v{gpu.version}'"
    if network.repository_url == known.NVIDIA_CHARTS and network.version.startswith("v"):
        plain = network.version.removeprefix("v")
        yield f"network_operator.version: {network.version!r}: this chart's versions have no v: {plain!r}"


def judged(draft: Draft) -> list[known.Finding]:
    """What the table of versions says; an operator that is not installed does not count."""
    gpu, network = draft.gpu_operator, draft.network_operator
    return known.judge(
        draft.k3s.version,
        gpu.version if gpu.enabled else None,
        network.version if network.enabled else None,
    )


def checksums(draft: Draft) -> Iterator[str]:
    """A checksum for everything that the hosts download."""
    k3s = draft.k3s
    if k3s.checksums_file:
        return
    named = k3s.sha256 is not None and (k3s.sha256.amd64 or k3s.sha256.arm64)
    if not named and k3s.version not in known.K3S_SHA256:
        yield (
            f"k3s.version: no checksum is known for {k3s.version!r}: put the sha256sum file published "
            "with the release beside the stack and name it as k3s.checksums_file, or give k3s.sha256.amd64"
        )
    for index, image in enumerate(k3s.images):
        if image.sha256 is None:
            yield f"k3s.images[{index}]: no checksum for {image.url!r}: give sha256, or k3s.checksums_file"


def images(draft: Draft) -> Iterator[str]:
    """Archives that K3s can read, under names of their own."""
    seen: dict[str, int] = {}
    for index, image in enumerate(draft.k3s.images):
        name = image.url.rpartition("/")[2]
        if not name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
            yield f"k3s.images[{index}].url: {image.url!r} is not a .tar, .tar.gz, .tgz or .tar.zst archive"
        if (first := seen.setdefault(name, index)) != index:
            yield (
                f"k3s.images[{index}].url: the file name {name!r} is also that of k3s.images[{first}]; "
                "the hosts keep archives by file name"
            )


# What busbar itself writes into config.yaml, and the setting that changes it.
_OWN_KEYS = {
    "token-file": None,
    "agent-token-file": None,
    "server": None,
    "cluster-init": None,
    "node-name": "hosts",
    "tls-san": None,
    "cluster-cidr": "k3s.cluster_cidr",
    "service-cidr": "k3s.service_cidr",
    "flannel-backend": "k3s.flannel_backend",
    "disable": "k3s.disable",
    "secrets-encryption": None,
    "write-kubeconfig-mode": None,
    "etcd-snapshot-schedule-cron": "k3s.snapshots.schedule",
    "etcd-snapshot-retention": "k3s.snapshots.retention",
    "node-label": "pools.<pool>.labels",
    "node-taint": "pools.<pool>.taints",
}
# On a server these two are the operator's own choice (taint the control plane); there busbar sets none.
_FREE_ON_SERVERS = {"node-label", "node-taint"}


def own_keys(draft: Draft) -> Iterator[str]:
    """No key of config.yaml that busbar writes itself."""
    for setting, arguments in (("server_args", draft.k3s.server_args), ("agent_args", draft.k3s.agent_args)):
        for key in arguments:
            name = key.removesuffix("+")
            if name in _OWN_KEYS and not (setting == "server_args" and name in _FREE_ON_SERVERS):
                instead = _OWN_KEYS[name]
                cure = f"use {instead}" if instead else "remove it"
                yield f"k3s.{setting}.{key}: busbar writes this key itself; {cure}"
    arguments = draft.k3s.server_args.get("kube-apiserver-arg", [])
    for argument in arguments if isinstance(arguments, list) else [arguments]:
        if str(argument).startswith(("anonymous-auth", "authentication-config")):
            yield (
                f"k3s.server_args.kube-apiserver-arg: {argument!r} contradicts the "
                "AuthenticationConfiguration with which busbar opens /livez and /readyz; remove it"
            )


def measurement(draft: Draft) -> Iterator[str]:
    """A measurement that can be made and can be passed."""
    validation = draft.validation
    if validation.min_bytes > validation.max_bytes:
        yield (
            f"validation.min_bytes: {validation.min_bytes} is more than validation.max_bytes, "
            f"{validation.max_bytes}"
        )
    if validation.profile is not None:
        try:
            profiles.load(validation.profile)
        except profiles.UnknownProfileError:
            names = profiles.names()
            hint = did_you_mean(validation.profile, names) or f"; there are: {', '.join(names)}"
            yield f"validation.profile: {validation.profile!r} is not known{hint}"
    for collective in validation.expected_by_collective:
        if collective not in validation.collectives:
            where = f"validation.expected_by_collective.{collective}"
            yield f"{where}: is not in validation.collectives; add it there"
    if len(set(validation.collectives)) < len(validation.collectives):
        yield f"validation.collectives: {', '.join(validation.collectives)}: each may be named once"
    for name, pool in draft.pools.items():
        gpus = str(pool.get("gpus", ""))
        slots = validation.slots_per_worker
        if slots is not None and gpus.isdigit() and slots > int(gpus):
            yield f"validation.slots_per_worker: {slots} is more than the {gpus} GPUs of pools.{name}"


def bucket(draft: Draft, secrets: Collection[str]) -> Iterator[str]:
    """Both keys of the bucket for snapshots."""
    if draft.k3s.snapshots.s3 is None:
        return
    missing = [f"busbar:{key}" for key in ("s3AccessKey", "s3SecretKey") if key not in secrets]
    if missing:
        yield (
            f"k3s.snapshots.s3: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; "
            "run `pulumi config set --secret KEY` for each"
        )
