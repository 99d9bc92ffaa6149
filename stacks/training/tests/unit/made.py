"""Made logs of training runs on 2 x 8 GPUs: a passing one, in which each test changes what it is about."""

import copy
import json
from typing import Any

from stacks.training.package.log import read_lines
from stacks.training.package.target import Expectation, expectation
from stacks.training.package.verdict import Verdict, judge
from stacks.training.tests.support import curve, target, training
from tests.unit.judge.nccl.made.nccl import messages
from tests.unit.judge.nccl.made.spec import Hosts, Nccl

STEPS = 30
CHECKPOINT_STEP = 15
GIB = 1 << 30
WORLD = 16
PODS = ["training-h100-0", "training-h100-1"]
SHA256 = "ab" * 32
RDMA = Nccl(version="2.28.3+cuda12.9", network="IBext_v8", net="IBext_v8", communicator=True)
TCP = Nccl(version="2.28.3+cuda12.9", network="Socket", net="Socket", gdr=False, communicator=True)

Record = dict[str, Any]


def record(kind: str, **values: Any) -> Record:
    return {"busbar_training": kind, **values}


def step(number: int, loss: float | str | None = None) -> Record:
    value = 2.0 * 0.85**number if loss is None else loss
    gradients = {f"{number:016x}": WORLD}
    return record("step", step=number, loss=value, distinct_losses=WORLD, gradients=gradients)


def starts() -> list[Record]:
    asked = {"schema": 1, "backend": "nccl", "world_size": WORLD, "gradient_bytes": GIB, "steps": STEPS}
    of_host = {"device": "NVIDIA H100 80GB HBM3", "ranks": 8}
    hosts = [
        record("host", node=f"gpu-{i + 1}", pod=pod, first_rank=8 * i, **of_host)
        for i, pod in enumerate(PODS)
    ]
    return [record("start", **asked, torch="2.13.0"), *hosts]


def first() -> list[Record]:
    """The attempt that ends with a kill."""
    written = record("checkpoint", step=CHECKPOINT_STEP, bytes=2 * GIB + 4096, seconds=1.5, sha256=SHA256)
    steps = [step(number) for number in range(1, CHECKPOINT_STEP + 3)]
    return [*starts(), *steps[:CHECKPOINT_STEP], written, *steps[CHECKPOINT_STEP:], record("kill", rank=15)]


def second() -> list[Record]:
    """The attempt that resumes and comes to the end. 390 GB/s of busbw: 5.16 ms for a GiB."""
    return [
        *starts(),
        record("resume", step=CHECKPOINT_STEP, sha256=SHA256, files={SHA256: 1}),
        *(step(number) for number in range(CHECKPOINT_STEP + 1, STEPS + 1)),
        record(
            "timing", bytes=GIB, step_s=[0.02] * 5, compute_s=[0.016] * 5, allreduce_s=[0.00516] * 5, wrong=0
        ),
        record("end", step=STEPS, parameters={"00000000000000aa": WORLD}),
    ]


def lines(records: list[Record], nccl: Nccl | None = RDMA) -> list[bytes]:
    """The records as the program prints them; NCCL's messages follow the first step."""
    printed: list[str] = []
    shown = False
    for each in records:
        printed.append(json.dumps(each, separators=(",", ":")))
        shown = shown and each["busbar_training"] != "start"
        if each["busbar_training"] == "step" and not shown and nccl is not None:
            printed += nccl_lines(nccl)
            shown = True
    return [f"{line}\n".encode() for line in printed]


def nccl_lines(nccl: Nccl) -> list[str]:
    """The messages of every rank behind their head."""
    made = messages(nccl, Hosts(names=PODS))
    found: list[str] = []
    for rank in range(WORLD):
        own = [line.text for line in made if line.rank == rank]
        head = {
            "busbar_training_nccl": rank, "lines": len(own), "bytes": sum(len(line) + 1 for line in own),
        }  # fmt: skip
        found.append(json.dumps(head, separators=(",", ":")))
        found += own
    return found


def changed(records: list[Record], kind: str, index: int = 0, **values: Any) -> list[Record]:
    """The records with fields of the `index`-th record of a kind replaced."""
    found = copy.deepcopy(records)
    [*same] = [each for each in found if each["busbar_training"] == kind]
    same[index].update(values)
    return found


def without(records: list[Record], kind: str) -> list[Record]:
    return [each for each in records if each["busbar_training"] != kind]


def expected(**values: Any) -> Expectation:
    """What a run on two H100 workers must show where nccl-tests measured 390 GB/s at 1 GiB."""
    config = training()
    made = expectation(target(config, verdict=curve(B1073741824=390.0)), config)
    return Expectation.model_validate({**made.model_dump(), **values})


def verdict(records: list[Record] | None = None, *, nccl: Nccl | None = RDMA, **want: Any) -> Verdict:
    printed = lines([*first(), *second()] if records is None else records, nccl)
    return judge(read_lines(printed), expected(**want))


def codes(found: Verdict) -> set[str]:
    return {str(check.code) for check in found.checks if check.status in ("fail", "unknown")}
