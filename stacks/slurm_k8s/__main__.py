"""The program of stacks/slurm_k8s: Slurm on a measured cluster. Wiring only; see package/components.py."""

from functools import partial
from typing import Any

import pulumi
from pulumi import ResourceOptions

from busbar.components.frame import Installation, run
from busbar.manifests.names import digest
from stacks.slurm_k8s.capability import CAPABILITY, GATE
from stacks.slurm_k8s.package.components import create_keys, create_measurements, passwords
from stacks.slurm_k8s.package.config import CONFIG, Slurm
from stacks.slurm_k8s.package.outputs import Outputs, build_outputs
from stacks.slurm_k8s.package.pools import pools_of, refusals
from stacks.slurm_k8s.package.ready import ReadySpec
from stacks.slurm_k8s.package.roll import RollSpec
from stacks.slurm_k8s.package.steps import StepSpec, await_slurmrestd
from stacks.slurm_k8s.package.survey import changed_state
from stacks.slurm_k8s.package.values import CRDS, OPERATOR, RELEASE, charts, survey_spec


def install(on: Installation[Slurm]) -> pulumi.Output[dict[str, Any]]:
    slurm, pools = on.config, pools_of(on.cluster, on.config)
    rows, asked = charts(slurm, pools), StepSpec(namespace=slurm.namespace)
    of_slurm, chart = rows[RELEASE]
    values = of_slurm.values(on.helm_values, chart)
    update, before = RollSpec.of(slurm, pools), partial(await_slurmrestd, namespace=slurm.namespace)
    survey = on.step("survey", "survey", survey_spec(slurm, pools), ResourceOptions())
    # The removal of the CRDs removes every Slurm cluster, so it comes last of all.
    crds = on.chart("slurm-crds", *rows[CRDS.release], on.after(survey), before_change=before)
    operator = on.chart(
        "slurm-operator", *rows[OPERATOR.release], on.after(crds), await_ready=True, before_change=before
    )
    # The certificate of the webhook is new after each change of the release.
    after = ResourceOptions(depends_on=[operator], replacement_trigger=operator.changes)
    webhook = on.step("slurm-webhook", "webhook", asked, after)
    after = ResourceOptions(depends_on=[webhook])
    gone = on.step_at_removal("slurm-gone", "after-removal", asked, after)
    change = on.step(
        "slurm-change", "before-change", update, after, digest({"values": values, "version": slurm.version})
    )
    # The namespace stays at a destroy, because slurmctld's volume is in it.
    made = on.chart(
        "slurm", of_slurm, chart, on.after(change, gone), before_change=before, keep_namespace=True
    )
    namespace, release = (each.resource for each in made.installed)
    keys = create_keys(slurm, on.after(namespace))
    ask = StepSpec(namespace=slurm.namespace, cancel_jobs=slurm.removal.cancel_jobs)
    # Its deletion comes before that of the release and of the keys.
    after = ResourceOptions(depends_on=[namespace, release, *keys])
    guard = on.step_at_removal("slurm-removal", "before-removal", ask, after)
    after = ResourceOptions(depends_on=[release, *keys, guard], replacement_trigger=made.changes)
    roll = on.step("slurm-roll", "roll", update, after, *(each.apply(digest) for each in passwords(slurm)))
    triggers = digest({"run": slurm.probe.run, "values": values}), f"contract {GATE.contract}"
    after = ResourceOptions(depends_on=[roll])
    ready = on.step("slurm-ready", "ready", ReadySpec.of(slurm, pools), after, *triggers)
    # Named, because Output.all() of nothing is an empty list.
    found = pulumi.Output.all(printed=ready.stdout, results=create_measurements(on, pools, namespace, ready))
    return found.apply(lambda known: build_outputs(slurm, on.cluster.cluster_name, pools, **known))


run(CAPABILITY, CONFIG, __file__, install, outputs=Outputs, refusals=refusals, unchangeable=changed_state)
