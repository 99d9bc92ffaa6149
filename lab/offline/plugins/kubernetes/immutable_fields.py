"""Fields that Kubernetes does not let anyone change: a change of one is a replacement.

The table is that of pulumi-kubernetes 4.34 (provider/pkg/provider/diff.go), for kinds of today's clusters.
"""

from __future__ import annotations

import re
from typing import Any, Final

from lab.offline.plugins.kubernetes.client import Object
from lab.offline.plugins.kubernetes.kinds import Kind

_CONTAINER: Final = (
    *("args", "command", "env", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "ports"),
    *("readinessProbe", "resources", "securityContext", "stdin", "stdinOnce", "terminationMessagePath"),
    *("terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir"),
)
_POD: Final = (
    *("affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks"),
    *("hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostname", "imagePullSecrets", "nodeName"),
    *("nodeSelector", "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates"),
    *("restartPolicy", "runtimeClassName", "schedulerName", "securityContext", "serviceAccount"),
    *("serviceAccountName", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "volumes"),
)
_VOLUME: Final = (
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume"),
    *("flocker", "gcePersistentDisk", "glusterfs", "hostPath", "iscsi", "local", "nfs"),
    *("photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
)
_IDENTITY: Final = ("metadata.name", "metadata.namespace")
_FIELDS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("apps", "DaemonSet"): ("spec.selector",),
    ("apps", "Deployment"): ("spec.selector",),
    ("apps", "StatefulSet"): tuple(
        f"spec.{name}"
        for name in (
            "podManagementPolicy",
            "revisionHistoryLimit",
            "selector",
            "serviceName",
            "volumeClaimTemplates",
        )
    ),
    ("batch", "Job"): tuple(
        f"spec.{name}" for name in ("completions", "parallelism", "selector", "template")
    ),
    ("", "PersistentVolume"): tuple(f"spec.{name}" for name in _VOLUME),
    ("", "PersistentVolumeClaim"): tuple(
        f"spec.{name}" for name in ("accessModes", "selector", "storageClassName", "volumeName")
    ),
    ("", "Pod"): (
        *(f"spec.{name}" for name in _POD),
        *(f"spec.{which}[*].{name}" for which in ("containers", "initContainers") for name in _CONTAINER),
    ),
    ("", "ResourceQuota"): ("spec.scopes",),
    ("", "Service"): ("spec.clusterIP",),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): ("roleRef",),
    ("rbac.authorization.k8s.io", "RoleBinding"): ("roleRef",),
    ("storage.k8s.io", "StorageClass"): ("parameters", "provisioner"),
}


def fields(obj: Object, *, patch: bool, mutable_config_maps: bool, mutable_secrets: bool) -> tuple[str, ...]:
    """The paths of `obj` that cannot be changed in place."""
    kind = Kind.of(obj)
    if patch:
        return _IDENTITY
    frozen = obj.get("immutable") is True
    if (kind.group, kind.kind) == ("", "Secret"):
        return _IDENTITY if mutable_secrets and not frozen else (*_IDENTITY, "type", "stringData", "data")
    if (kind.group, kind.kind) == ("", "ConfigMap"):
        return _IDENTITY if mutable_config_maps and not frozen else (*_IDENTITY, "binaryData", "data")
    return _IDENTITY + _FIELDS.get((kind.group, kind.kind), ())


_STEP: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+|\*)\]|([^.\[\]]+)')


def steps(path: str) -> list[str]:
    """`spec.ports[0]` as ["spec", "ports", "0"]."""
    return [quoted or index or name for quoted, index, name in _STEP.findall(path)]


def forces_replacement(path: str, value: Any, immutable: tuple[str, ...]) -> bool:
    """Whether setting `path` to `value` touches one of the `immutable` paths, at or below it."""
    changed = steps(path)
    return any(_touches(changed, value, steps(rule)) for rule in immutable)


def _touches(changed: list[str], value: Any, rule: list[str]) -> bool:
    for one, other in zip(changed, rule, strict=False):
        if other not in ("*", one):
            return False
    return len(changed) >= len(rule) or _has(value, rule[len(changed) :])


def _has(value: Any, rest: list[str]) -> bool:
    if not rest:
        return True
    if rest[0] == "*":
        return isinstance(value, list) and any(_has(item, rest[1:]) for item in value)
    return isinstance(value, dict) and rest[0] in value and _has(value[rest[0]], rest[1:])
