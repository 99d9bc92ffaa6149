"""What a configuration of Slurm may not say, and what `busbar check-config` prints of it."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import ConfigError
from stacks.slurm_k8s.package.config import CONFIG
from stacks.slurm_k8s.tests.support import configured, slurm

TAKES_SSHD = {"service": {"spec": {"type": "LoadBalancer"}}}


@pytest.mark.parametrize(
    ("given", "where", "says"),
    [
        ({"login": {"service": "LoadBalancer"}}, "login.port", "takes port 22 of the hosts"),
        ({"values": {"loginsets": {"x": TAKES_SSHD}}}, "values.loginsets.x.service", "takes port 22"),
        ({"operator_values": {"crds": {"enabled": True}}}, "operator_values.crds", "rely on"),
        (
            {"values": {"controller": {"persistence": {"enabled": False}}}},
            "values.controller.persistence: ",
            "Fix: remove it; state of",
        ),
        ({"values": {"controller": None}}, "values.controller: ", "busbar sets itself"),
        ({"values": {"nodesets": {"h100": {"replicas": 1}}}}, "values.nodesets.h100.replicas: ", "rely on"),
        (
            {"values": {"nodesets": {"h100": {"updateStrategy": {"type": "RollingUpdate"}}}}},
            "h100.updateStrategy: ",
            "rely on",
        ),
        (
            {"values": {"nodesetDefaults": {"scalingMode": "DaemonSet"}}},
            "values.nodesetDefaults.scalingMode: ",
            "rely on",
        ),
        (
            {"values": {"slurmKey": {"secretRef": {"name": "mine", "key": "key"}}}},
            "values.slurmKey: ",
            "busbar sets itself",
        ),
        (
            {"values": {"loginsets": {"slinky": {"service": {"port": 22}}}}},
            "loginsets.slinky.service.port: ",
            "login.port of the stack",
        ),
        (
            {"values": {"loginsets": {"x": {"service": {"nodePort": 22}}}}},
            "x.service.nodePort: ",
            "takes port 22 of the hosts",
        ),
        ({"values": {"restapi": {"replicas": 0}}}, "values.restapi.replicas: ", "leaves no slurmrestd"),
        (
            {"values": {"configFiles": {"gres.conf": "x"}}},
            "values.configFiles.gres.conf: ",
            "pools.NAME.gpu_files",
        ),
        ({"values": {"controller": {"slurmctld": {"args": ["-c"]}}}}, "slurmctld.args: ", "rely on"),
        ({"values": {"nodesetDefaults": {"ordinalPadding": 2}}}, "nodesetDefaults.ordinalPadding: ", "rely"),
        ({"values": {"nodesets": {"h100": {"pinToNode": True}}}}, "nodesets.h100.pinToNode: ", "rely on"),
        ({"values": {"configFiles": {"slurm.conf": "x"}}}, "slurm.conf: ", "slurm_conf of the stack sets it"),
        (
            {"operator_values": {"webhook": {"enabled": False}}},
            "operator_values.webhook.enabled: ",
            "rely on",
        ),
        (
            {"login": {"root_ssh_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}},
            "root_ssh_keys[0]",
            "is not a public key",
        ),
        ({"namespace": "busbar-validation"}, "namespace", "belongs to the cluster's own measurements"),
        (
            {"slurm_conf": {"MaxJobCount": 1, "maxjobcount": 2}},
            "slurm_conf.maxjobcount: ",
            "is MaxJobCount once more",
        ),
        (
            {"slurm_conf": {"KillWiat": 60}},
            "slurm_conf.KillWiat: ",
            "is not a parameter of slurm.conf; did you mean 'KillWait'?",
        ),
        ({"slurm_conf": {"NodeName": "x"}}, "slurm_conf.NodeName: ", "is set by busbar or the operator"),
        ({"slurm_conf": {"ReturnToService": 0}}, "slurm_conf.ReturnToService: ", "updates rely on it"),
        ({"slurm_conf": {"TaskPlugin": "x NodeName=y"}}, "slurm_conf.TaskPlugin", "a value without blanks"),
        ({"namespace": "slinky"}, "namespace", "belongs to an operator"),
        ({"namespace": "kube-system"}, "namespace", "belongs to Kubernetes"),
        ({"version": "1.0.0"}, "version", "is not a version 1.2.x of the charts"),
        ({"version": "1.1.2"}, "version", "is not a version 1.2.x of the charts"),
        ({"version": "1.3.0"}, "version", "is not a version 1.2.x of the charts"),
        ({"sidecar_image": "alpine"}, "sidecar_image", "has no fixed tag"),
        ({"charts": "slurm"}, "charts", "is not a folder or an oci:// URL"),
        (
            {"slurm_conf": {"slurmctldParameters": "x"}},
            "slurm_conf.slurmctldParameters",
            "is set by busbar or the operator",
        ),
        ({"slurm_conf": {"No Blank": "1"}}, "slurm_conf", "is not a parameter of slurm.conf"),
    ],
)
def test_what_would_harm_the_cluster_is_refused_with_its_place(
    given: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        CONFIG.load(configured(**given))
    assert where in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"login": {"service": "LoadBalancer", "port": 2222}},
        {"login": {"service": "NodePort"}},
        {"values": {"loginsets": {"x": {"service": {"port": 2222, "spec": {"type": "LoadBalancer"}}}}}},
        {"values": {"restapi": {"service": {"spec": {"type": "LoadBalancer"}}, "replicas": 3}}},
        {"values": {"configFiles": {"topology.yaml": "[]", "cgroup.conf": "CgroupPlugin=disabled"}}},
        {
            "values": {
                "nodesets": {"h100": {"slurmd": {"image": {"tag": "2"}}, "extraConfMap": {"Weight": 2}}}
            }
        },
        {"slurm_conf": {"DefMemPerCPU": 100, "TaskPlugin": "task/none"}},
        {"login": {"root_ssh_keys": ["ssh-ed25519 AAAA ada@here"]}},
    ],
)
def test_what_harms_nothing_is_accepted(given: dict[str, Any]) -> None:
    assert slurm(**given).cluster


def test_a_version_may_have_a_leading_v() -> None:
    assert slurm(version="v1.2.2").version == "v1.2.2"


def test_parameters_of_slurm_and_those_of_a_later_release_are_taken() -> None:
    given = {"DefMemPerGPU": "100", "EpilogTimeout": "60", "prologtimeout": "60", "QuantumParameters": "x"}
    assert slurm(slurm_conf=given).slurm_conf == given
