"""What a configuration of Slurm may not say, and what `busbar check-config` prints of it."""

from typing import Any

import pytest
import yaml

from busbar.config import ConfigError
from stacks.slurm_k8s.package.config import CONFIG
from stacks.slurm_k8s.tests.support import configured, slurm

# The place of the finding, a part of what it says, and the configuration.
REFUSED = yaml.safe_load("""
- [login.port, takes port 22 of the hosts, {login: {service: LoadBalancer}}]
- [login, is not a public key, {login: {root_ssh_keys: ["-----BEGIN OPENSSH PRIVATE KEY-----"]}}]
- [namespace, belongs to the cluster's own measurements, {namespace: busbar-validation}]
- [namespace, belongs to an operator, {namespace: slinky}]

- [version, is not a version 1.2.x of the charts, {version: 1.3.0}]
- [sidecar_image, has no fixed tag, {sidecar_image: alpine}]
- [charts, "is not a folder or an oci:// URL", {charts: slurm}]

- [slurm_conf.maxjobcount, is MaxJobCount once more, {slurm_conf: {MaxJobCount: 1, maxjobcount: 2}}]
- [slurm_conf.KillWiat, "is not a parameter of slurm.conf; did you mean 'KillWait'?",
   {slurm_conf: {KillWiat: 60}}]
- [slurm_conf.NodeName, is set by busbar or the operator, {slurm_conf: {NodeName: x}}]
- [slurm_conf.slurmctldParameters, is set by busbar or the operator, {slurm_conf: {slurmctldParameters: x}}]
- [slurm_conf.ReturnToService, updates rely on it, {slurm_conf: {ReturnToService: 0}}]
- [slurm_conf.TaskPlugin, a value without blanks, {slurm_conf: {TaskPlugin: x NodeName=y}}]
- [slurm_conf, is not a parameter of slurm.conf, {slurm_conf: {No Blank: "1"}}]

- [values.controller, busbar sets itself, {values: {controller: null}}]
- [values.controller.persistence, "Fix: remove it; state of",
   {values: {controller: {persistence: {enabled: false}}}}]
- [values.controller.slurmctld.args, rely on, {values: {controller: {slurmctld: {args: [-c]}}}}]
- [values.slurmKey, busbar sets itself, {values: {slurmKey: {secretRef: {name: mine, key: key}}}}]
- [values.restapi.replicas, leaves no slurmrestd, {values: {restapi: {replicas: 0}}}]
- [values.configFiles.gres.conf, pools.NAME.gpu_files, {values: {configFiles: {gres.conf: x}}}]
- [values.configFiles.slurm.conf, slurm_conf of the stack sets it, {values: {configFiles: {slurm.conf: x}}}]
- [values.nodesets.h100.replicas, rely on, {values: {nodesets: {h100: {replicas: 1}}}}]
- [values.nodesets.h100.pinToNode, rely on, {values: {nodesets: {h100: {pinToNode: true}}}}]
- [values.nodesets.h100.updateStrategy, rely on,
   {values: {nodesets: {h100: {updateStrategy: {type: RollingUpdate}}}}}]
- [values.nodesetDefaults.scalingMode, rely on, {values: {nodesetDefaults: {scalingMode: DaemonSet}}}]
- [values.nodesetDefaults.ordinalPadding, rely on, {values: {nodesetDefaults: {ordinalPadding: 2}}}]
- [values.loginsets.x.service, takes port 22,
   {values: {loginsets: {x: {service: {spec: {type: LoadBalancer}}}}}}]
- [values.loginsets.x.service.nodePort, takes port 22 of the hosts,
   {values: {loginsets: {x: {service: {nodePort: 22}}}}}]
- [values.loginsets.slinky.service.port, login.port of the stack,
   {values: {loginsets: {slinky: {service: {port: 22}}}}}]
- [operator_values.crds, rely on, {operator_values: {crds: {enabled: true}}}]
- [operator_values.webhook.enabled, rely on, {operator_values: {webhook: {enabled: false}}}]
""")


@pytest.mark.parametrize(("where", "says", "given"), REFUSED)
def test_what_would_harm_the_cluster_is_refused_with_its_place(
    where: str, says: str, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        CONFIG.load(configured(**given))
    [finding] = refused.value.findings
    place = ".".join(map(str, finding.path))
    assert place.startswith(where) and says in str(finding), str(finding)


ACCEPTED = yaml.safe_load("""
- {version: v1.2.2}
- {login: {service: LoadBalancer, port: 2222}}
- {login: {service: NodePort}}
- {login: {root_ssh_keys: [ssh-ed25519 AAAA ada@here]}}
- {slurm_conf: {DefMemPerCPU: 100, TaskPlugin: task/none}}
# Parameters of a later release.
- {slurm_conf: {DefMemPerGPU: "100", EpilogTimeout: "60", prologtimeout: "60", QuantumParameters: x}}
- {values: {loginsets: {x: {service: {port: 2222, spec: {type: LoadBalancer}}}}}}
- {values: {restapi: {service: {spec: {type: LoadBalancer}}, replicas: 3}}}
- {values: {configFiles: {topology.yaml: "[]", cgroup.conf: CgroupPlugin=disabled}}}
- {values: {nodesets: {h100: {slurmd: {image: {tag: "2"}}, extraConfMap: {Weight: 2}}}}}
""")


@pytest.mark.parametrize("given", ACCEPTED, ids=str)
def test_what_harms_nothing_is_accepted(given: dict[str, Any]) -> None:
    assert slurm(**given).cluster
