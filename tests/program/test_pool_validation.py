"""`pools.NAME.validation` in the whole program: it reaches the job and gate of that pool only."""

from __future__ import annotations

import json
from typing import Any

from tests.program.answers import healthy
from tests.program.harness import Run, run_program
from tests.support.clusters import site
from tests.support.verdicts import passing


def update(own: dict[str, Any] | None = None) -> Run:
    cluster = site(workers={"h100": 2, "other": 2})
    if own is not None:
        cluster["pools"]["other"]["validation"] = own
    return run_program(cluster, healthy(cluster, lambda _: passing()))


def test_a_pool_is_measured_with_its_own_image_and_the_others_are_not_measured_again() -> None:
    same, changed = update(), update({"image": "example.com/nccl:1"})
    assert "example.com/nccl:1" in json.dumps(changed.named("busbar-nccl-other-job").inputs)
    assert changed.named("busbar-nccl-h100-job").inputs == same.named("busbar-nccl-h100-job").inputs
    assert changed.named("busbar-nccl-h100-collect").raw == same.named("busbar-nccl-h100-collect").raw


def test_another_tolerance_of_a_pool_judges_its_log_again_and_changes_nothing_else() -> None:
    same, changed = update(), update({"tolerance": 0.3})
    assert changed.named("busbar-nccl-other-job").inputs == same.named("busbar-nccl-other-job").inputs
    differ = [name for name, each in changed.resources.items() if each.raw != same.resources[name].raw]
    assert [name.rpartition("::")[2] for name in differ] == ["busbar-nccl-other-collect"]
