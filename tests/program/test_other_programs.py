"""Components in a program that is not that of busbar: each is made of the checked models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import mocks

from busbar.outputs.contract import summarize
from tests.program.answers import healthy
from tests.program.harness import COMMAND, LOCAL, RELEASE, Answer, Run, run_program, texts
from tests.support.clusters import host, site
from tests.support.verdicts import passing

PROGRAM = """
import pulumi, pulumi_kubernetes as kubernetes
from busbar.components.gpu_operator import GpuOperator
from busbar.components.mpi_operator import MpiOperator
from busbar.components.nccl_validation import NcclValidation
from busbar.components.network_operator import NetworkOperator
from busbar.config import cluster
from busbar.config.cluster import Hardware, Validation
from busbar.manifests.nccljob import nccl_job

kubeconfig = "a kubeconfig"
on_cluster = pulumi.ResourceOptions(provider=kubernetes.Provider("mine", kubeconfig=kubeconfig))
given = {"opts": on_cluster, "kubeconfig": kubeconfig}
gpus = GpuOperator("gpus", **given, config=cluster.GpuOperator(), nodes={"n1": 8, "n2": 8})
nodes, rails = {"n1": 4, "n2": 4}, ["0000:1b:00.0"]
hcas = NetworkOperator("hcas", **given, config=cluster.NetworkOperator(), nodes=nodes, rails=rails)
image = cluster.MpiOperator(image="registry.example/mpi:1")
mpi = MpiOperator("mpi", **given, config=image)
validation = Validation(iterations=7)
job = nccl_job("b200", ["n1", "n2"], Hardware(gpus=8, rails=4, rate_gbps=400), validation)
after = pulumi.ResourceOptions.merge(on_cluster, pulumi.ResourceOptions(depends_on=[gpus, hcas, mpi]))
measured = NcclValidation("nccl", after, kubeconfig=kubeconfig, job=job, validation=validation)
pulumi.export("verdict", measured.result.apply(lambda result: result["verdict"]))
"""

ON_HOSTS = """
import pulumi
from pathlib import Path
from busbar.hosts import nfs
from busbar.components.api_endpoint import ApiEndpoint
from busbar.components.control_plane import K3sControlPlane
from busbar.components.engine.join_tokens import JoinTokens
from busbar.components.engine.stack import StackConfig
from busbar.components.load_balancer import HAProxyLoadBalancer
from busbar.components.nfs_server import NfsServer
from busbar.components.preflight import Preflight
from busbar.components.worker_pool import InfiniBandWorkerPool

secrets = {"sshPrivateKey": pulumi.Output.secret("the key")}
config = StackConfig.of(CONFIG, secrets, Path())
inventory = config.inventory
tokens = JoinTokens("plane")
checks = Preflight("checks", config=config, install_id=tokens.install_id)
plane = K3sControlPlane("plane", config=config, tokens=tokens, machines=checks.machines)
of_plane = {"kubeconfig": plane.kubeconfig, "servers": plane.servers, "agent_token": plane.agent_token}
HAProxyLoadBalancer("api", config=config, ca_pem=plane.ca_pem, install_id=plane.install_id)
ApiEndpoint("endpoint", config=config, kubeconfig=plane.kubeconfig)
NfsServer(
    "nfs", login=config.login, install_id=plane.install_id, export=nfs.export_of(inventory),
    fronts=inventory.fronts, workers=inventory.workers,
)
InfiniBandWorkerPool(
    "pool", config=config, pool="h100", prefix="gpu", install_id=plane.install_id,
    unreachable=checks.unreachable, registries_yaml=plane.registries_yaml, **of_plane,
)
pulumi.export("kubeconfig", plane.kubeconfig)
"""
ON_ITS_HOSTS = site(
    load_balancers=2, servers=1, workers={"h100": 1}, nfs_server={"folder": "/srv/files"}, ssh={}
)
ON_ITS_HOSTS["hosts"]["nfs_server"] = host("files", "192.0.2.20")


def answer(args: mocks.MockResourceArgs) -> Mapping[str, Any]:
    if args.typ == RELEASE:
        return {"status": {"version": "1"}}
    result = summarize(passing(), verdict_file="verdict.json", config_map="default/nccl")
    return {"stdout": json.dumps(result)} if args.typ == LOCAL else {}


def performed(folder: Path, text: str, answers: Answer) -> Run:
    program = folder / "__main__.py"
    program.write_text(text)
    done = run_program({}, answers, program=program, project="mine")
    assert done.error is None
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return performed(tmp_path_factory.mktemp("program"), PROGRAM, answer)


@pytest.fixture(scope="module")
def on_hosts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    program = ON_HOSTS.replace("CONFIG", repr(ON_ITS_HOSTS))
    return performed(tmp_path_factory.mktemp("on_hosts"), program, healthy(ON_ITS_HOSTS))


def test_the_verdict_is_an_output_of_the_component(run: Run) -> None:
    assert run.outputs == {"verdict": "pass"}


def test_everything_on_the_cluster_is_made_by_the_given_provider(run: Run) -> None:
    mine = run.named("mine").urn
    on_cluster = [each for each in run.custom if each.type.startswith("kubernetes:")]
    assert on_cluster and {each.request.provider.rpartition("::")[0] for each in on_cluster} == {mine}


def test_a_kubeconfig_that_is_not_marked_as_a_secret_is_one_in_every_command(run: Run) -> None:
    found = (each for command in run.of_type(LOCAL) for each in texts(command.raw))
    sent = [each for each in found if each[1] == "a kubeconfig"]
    assert len(sent) == 3 and all(secret for _, _, secret in sent)


def test_the_policy_is_deleted_with_the_release_that_brings_its_kind(run: Run) -> None:
    assert run.named("hcas-policy").request.deletedWith == run.named("hcas-release").urn


def test_what_a_step_is_sent_on_stdin_is_a_secret_also_where_no_program_marked_it(on_hosts: Run) -> None:
    for command in on_hosts.of_type(COMMAND):
        [(_, text, secret)] = [each for each in texts(command.raw) if each[0] == "stdin"]
        assert secret is (text.splitlines()[0] != "{}"), command.name
