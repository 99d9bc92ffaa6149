"""`busbar nccl script`: a measurement as an sbatch script or an MPIJob, for foreign clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from busbar.cli import nccl as option
from busbar.cli.output import as_yaml, print_text
from busbar.text import counted

if TYPE_CHECKING:
    from busbar.config import Validation
    from busbar.config.cluster import Gpus
    from busbar.judge.nccl.expected.profiles import Profile

EXAMPLES = (
    "busbar nccl script --profile h100-sharp --nodes 8 > nccl.sbatch && sbatch --partition=gpu nccl.sbatch",
    "busbar nccl script --profile gb200-nvl72 --nodes 18 --image nccl-tests.sqsh",
    "busbar nccl script --profile a100-sharp --nodes 8 --launcher mpijob | kubectl create -f -",
)


def register(app: typer.Typer) -> None:
    """Add the command to the group `nccl`."""
    app.command("script", epilog=option.epilog(EXAMPLES))(script)


def script(
    profile: Annotated[str, option.value(None, "NAME", "Known system; `busbar nccl profiles` lists them.")],
    nodes: Annotated[int, option.value(None, "N", "Nodes of the job.", min=1)],
    launcher: Annotated[
        Literal["slurm", "mpijob"], typer.Option(help="An sbatch script, or a manifest for kubectl create.")
    ] = "slurm",
    image: Annotated[
        str | None,
        option.value(
            None,
            "IMAGE",
            "slurm: what pyxis starts, such as X.sqsh; by default nccl-tests on the nodes. mpijob: with "
            "nccl-tests, Open MPI and sshd.",
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, option.value(None, "N", "Fewer GPUs per node than the profile has.", min=1)
    ] = None,
) -> None:
    """Print a complete job that measures as a stack does; `busbar nccl check` judges its log.

    The profile sets the job, as it sets what the gate expects.

    Exit code 0: printed; 64: bad usage.
    """
    from busbar.judge.nccl.expected.profiles import load
    from busbar.manifests import mpijob, sbatch
    from busbar.manifests.nccljob import nccl_job
    from busbar.manifests.ncclrun import nccl_run

    system = load(profile)
    if launcher == "slurm":
        print_text(sbatch.script(nccl_run(*_asked(system, nodes, gpus_per_node)), system, image))
    else:
        job = nccl_job(*_asked(system, nodes, gpus_per_node, image))
        print_text(as_yaml([_anywhere(mpijob.render(job))]))


def _asked(
    system: Profile, nodes: int, gpus: int | None, image: str | None = None
) -> tuple[str, list[str], Gpus, Validation]:
    """The arguments for a run of a profile on unknown nodes. Raises ConfigError."""
    from busbar.config import ConfigError, Finding, Validation, section
    from busbar.config.cluster import Gpus

    if gpus and gpus > system.gpus_per_node:
        what = f"profile {system.name} has {counted(system.gpus_per_node, 'GPU')} per node"
        fix = "give no more, or another profile (busbar nccl profiles)"
        raise ConfigError([Finding(("--gpus-per-node",), what, fix, f"{gpus}:")])
    asked = {"profile": system.name, **({"image": image} if image else {})}
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    hardware = Gpus(gpus=gpus or system.gpus_per_node)
    return system.name, names, hardware, section(Validation, "validation", asked)


def _anywhere(manifest: dict[str, Any]) -> dict[str, Any]:
    """The MPIJob in kubectl's namespace, on any nodes with the resources that it requests."""
    del manifest["metadata"]["namespace"]
    for replicas in manifest["spec"]["mpiReplicaSpecs"].values():
        del replicas["template"]["spec"]["affinity"]["nodeAffinity"]
    return manifest
