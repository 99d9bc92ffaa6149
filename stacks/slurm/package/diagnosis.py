"""The stages of `busbar diagnose` on hosts of Slurm: each is one job, and its groups are steps of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from busbar.fabric.diagnosis import Scope
from busbar.fabric.diagnosis.stages import StageCollector, StageLog, Work, with_rings
from busbar.fabric.measure import CannotMeasure
from busbar.fabric.slurm import JobSpec, SlurmJob, why_unusable
from busbar.judge.checks import Verdict
from busbar.kube.wait import Clock, ProgressCallback
from busbar.manifests import sbatch
from busbar.manifests.ncclrun import nccl_run
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.reach import OverSsh

NO_STEP = "no step of the job starts there. Fix: see slurmd's log on that host"


@dataclass(frozen=True)
class BySbatch:
    """Runs the stages of a diagnosis; see busbar.fabric.diagnosis.Backend."""

    slurm: Slurm
    scope: Scope
    reach: OverSsh
    clock: Clock
    progress: ProgressCallback

    def machines(self, nodes: Sequence[str]) -> Mapping[str, Sequence[str | None]]:
        """The boot of each host; none where it is not responding."""
        found = self.reach.daemons(nodes)
        return {name: [found[name]["boot"]] if name in found else [] for name in nodes}

    def look(self, nodes: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]]]:
        """Look which nodes can start jobs. Those that users' jobs hold are waited for, as in a measurement.

        Raises CannotMeasure, ScriptError, UnreachableError.
        """
        found = self.reach.ask("nodes")["nodes"]
        absent = {name: f"it {why}" for name, why in self.reach.gone(nodes).items()}
        absent |= {name: f"it is {why}" for name in nodes if (why := why_unusable(found.get(name)))}
        if len(absent) == len(nodes):
            reasons = [f"{name}: {why}" for name, why in absent.items()]
            raise CannotMeasure([*reasons, "no node can be measured. Fix: sinfo -R; repair and resume them"])
        return absent, {}

    def run(self, work: Work, keep: Callable[[StageLog], None]) -> Verdict:
        """Run the groups. A job that has not ended when it returns or raises is cancelled."""
        slurm, scope = self.slurm, self.scope
        partition = slurm.partition_of(scope.pool)
        limit = slurm.partitions_or_default[partition].max_seconds
        work = replace(work, seconds=int(min(work.seconds, limit)))
        validation = with_rings(scope.validation)
        run = work.run(nccl_run(scope.pool, work.nodes, scope.hardware, validation))
        spec = JobSpec(
            partition=partition,
            job=f"diagnose-{scope.pool}-{os.urandom(3).hex()}",
            script=sbatch.script_of_groups(run, work.stage, validation.system, slurm.validation.image),
            deadline_seconds=run.deadline_seconds,
            pending_seconds=slurm.validation.pending_seconds,
            min_nodes_fraction=0,
        )
        job = SlurmJob(spec, run.nodes, self.reach, work.folder, self.clock, self.progress)
        collector = StageCollector(job, work, run, lambda nodes: dict.fromkeys(nodes, NO_STEP), self.progress)
        try:
            return collector.run()
        finally:
            job.suspend()
            keep(collector.log)
