"""The program of stacks/watch: monitors a measured fabric. It has wiring only; see package/components.py."""

from typing import Any

import pulumi
from pulumi import ResourceOptions

from busbar.components.frame import Installation, run
from stacks.watch.capability import CAPABILITY
from stacks.watch.package import manifests
from stacks.watch.package.check import SurveySpec
from stacks.watch.package.components import Monitoring, NodeProblems, create_grafana_password
from stacks.watch.package.config import CONFIG, Watch
from stacks.watch.package.outputs import Outputs, build_outputs


def install(on: Installation[Watch]) -> pulumi.Output[dict[str, Any]]:
    watch, stack = on.config, on.config.stack
    first: list[pulumi.Resource] = []
    if stack.mode != "none":
        first.append(on.step("survey", "survey", SurveySpec.of(stack), ResourceOptions()))
    # Helm does not wait for these: the step `check` does.
    crds = on.chart("prometheus-crds", manifests.CRDS, stack.crds, on.after(*first))
    prometheus = on.chart("prometheus", manifests.STACK, stack.prometheus, on.after(crds))
    if stack.enabled:
        create_grafana_password(on.after(prometheus))
    monitoring = Monitoring(on, on.after(*first, prometheus))
    NodeProblems(watch, monitoring.namespace, on.after())
    return monitoring.result.apply(lambda printed: build_outputs(watch, on.cluster.cluster_name, printed))


run(CAPABILITY, CONFIG, __file__, install, outputs=Outputs)
