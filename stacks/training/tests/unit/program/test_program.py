"""The training program where it does not compute: its records, what it exchanges, stores and waits for."""

import argparse
import ast
import contextlib
import importlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from stacks.training.package import log
from stacks.training.tests.unit.made import starts
from stacks.training.tests.unit.program.ranks import PER_HOST, PROGRAM, SAFE, WORLD, Tensor, run, writes
from stacks.training.tests.unit.test_proof import container, rendered

[RECORDS, *_] = get_args(log.AnyRecord)
KINDS = {get_args(kind.model_fields["busbar_training"].annotation)[0]: kind for kind in get_args(RECORDS)}


def module(name: str) -> Any:
    return importlib.import_module(name)


def records(printed: list[list[str]]) -> list[dict[str, Any]]:
    """What rank 0 printed; no other rank may print."""
    assert not any(printed[1:])
    found = [json.loads(line) for line in printed[0]]
    for each in found:
        KINDS[each["busbar_training"]].model_validate_json(json.dumps(each))
    return [{key: value for key, value in each.items() if key != "busbar_training"} for each in found]


def test_every_record_has_exactly_the_fields_that_the_reader_expects() -> None:
    emitted = {}
    for path in PROGRAM.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "emit":
                [kind] = call.args
                assert isinstance(kind, ast.Constant)
                emitted[kind.value] = {word.arg for word in call.keywords}
    expected = {
        kind: {field.alias or name for name, field in model.model_fields.items()} - {"busbar_training"}
        for kind, model in KINDS.items()
    }
    assert emitted == expected


def test_the_program_has_the_schema_of_its_reader() -> None:
    assert f"\nSCHEMA = {log.SCHEMA}\n" in (PROGRAM / "main.py").read_text()


def test_the_program_takes_the_options_that_its_job_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the parser is compiled: its module needs torch."""
    asked = {"gradient_bytes": "16G", "steps": 31, "iterations": 11, "collective_timeout_seconds": 61}
    values = {
        "gradient_bytes": 16 << 30, "steps": 31, "iterations": 11, "timeout_seconds": 61, "backend": "nccl",
        "checkpoints": Path("/busbar/checkpoints"),
    }  # fmt: skip
    tree = ast.parse((PROGRAM / "main.py").read_text())
    [parser] = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "arguments"]
    namespace: dict[str, Any] = {"argparse": argparse, "Path": Path, "__doc__": ""}
    exec(compile(ast.Module([parser], []), "main.py", "exec"), namespace)
    [options] = re.findall(
        r" /busbar/program/main.py (.*) \|\| code=", container(rendered(asked))["command"][2]
    )
    monkeypatch.setattr(sys, "argv", ["main.py", *options.split()])
    found = vars(namespace["arguments"]())
    assert values == found


def test_rank_0_alone_prints_and_numbers_that_json_does_not_know_are_texts(tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        values = {"nan": float("nan"), "high": float("inf"), "low": -float("inf"), "of_ranks": [rank, 1.5]}
        module("records").emit("step", **values)
        return module("records").gather(rank * 10)

    ran = run(tmp_path, act)
    assert ran.returned == [[0, 10, 20, 30]] * WORLD
    assert ran.printed == [
        ['{"busbar_training":"step","nan":"nan","high":"inf","low":"-inf","of_ranks":[0,1.5]}'], [], [], [],
    ]  # fmt: skip


def test_the_messages_of_all_ranks_are_printed_by_rank_0_so_that_a_lost_line_shows(tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        module("tempfile").tempdir = str(tmp_path)
        messages = module("records").NcclMessages()
        file = Path(os.environ["NCCL_DEBUG_FILE"])
        if rank != 3:
            file.write_text(f"gpu:1:1 [{rank}] NCCL INFO µ\n\ngpu:1:1 [{rank}] NCCL INFO end\n")
        messages.print_all()
        messages.remove()
        return file.exists()

    ran = run(tmp_path, act)
    assert ran.returned == [False] * WORLD
    assert not any(ran.printed[1:])
    heads = [json.loads(line) for line in ran.printed[0] if line.startswith("{")]
    size = len("gpu:1:1 [0] NCCL INFO µ\ngpu:1:1 [0] NCCL INFO end\n".encode())
    counts = [{"lines": 2, "bytes": size}] * 3 + [{"lines": 0, "bytes": 0}]
    assert heads == [{"busbar_training_nccl": rank, **each} for rank, each in enumerate(counts)]
    begun = [json.dumps(each, separators=(",", ":")) for each in starts()]
    read = log.read_lines(f"{line}\n".encode() for line in [*begun, *ran.printed[0]])
    assert (read.problems, read.attempts[0].nccl_ranks) == ([], {0, 1, 2, 3})
    cut = [line for line in ran.printed[0] if not line.endswith("[1] NCCL INFO end")]
    assert log.read_lines(f"{line}\n".encode() for line in [*begun, *cut]).attempts[0].nccl_ranks == {0, 2, 3}


def test_a_rank_that_fails_prints_what_nccl_said_to_it_and_leaves_no_file(tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        main, torch, error = module("main"), module("torch"), io.StringIO()
        module("tempfile").tempdir = str(tmp_path)
        torch.device = lambda *_: argparse.Namespace(type="cpu")
        torch.distributed.init_process_group = lambda *_, **__: None
        main.arguments = lambda: argparse.Namespace(backend="gloo", timeout_seconds=1)

        def fails(*_: Any) -> None:
            Path(os.environ["NCCL_DEBUG_FILE"]).write_text(f"NCCL WARN {rank}\n")
            raise RuntimeError("all_reduce")

        main._run = fails
        with contextlib.redirect_stderr(error), contextlib.suppress(RuntimeError):
            main.main()
        return error.getvalue(), list(tmp_path.glob(f"nccl.*.{os.getpid()}.log"))

    assert run(tmp_path, act).returned == [(f"NCCL WARN {rank}\n\n", []) for rank in range(WORLD)]


class Model:
    def __init__(self, *values: float) -> None:
        self.weights = {"a": Tensor(*values), "b": Tensor(*(2 * value for value in values))}

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights

    def named_parameters(self) -> Any:
        return self.weights.items()

    def parameters(self) -> Any:
        return self.weights.values()


class Optimizer:
    def __init__(self, model: Model, *values: float) -> None:
        self.param_groups = [{"params": list(model.parameters())}]
        self.state: dict[Tensor, dict[str, Any]] = {
            parameter: {"momentum_buffer": Tensor(*(number * value for value in values))}
            for number, parameter in enumerate(model.parameters(), 3)
        }


def saved_and_resumed(folder: Path, of_host: Any, later: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """What every rank has after another start, and the records; `later`: the folder of each host then."""

    def act(rank: int) -> Any:
        checkpoint, own, local = module("checkpoint"), of_host(rank // PER_HOST), rank % PER_HOST
        nothing = checkpoint.resume(own, Model(1.0), Optimizer(Model(1.0)), local_rank=local)
        trained = Model(rank + 1.0, 5.0)
        checkpoint.save(own, 15, trained, Optimizer(trained, rank + 7.0, 8.0))
        left = sorted(path.name for path in own.iterdir()) if own.exists() else []
        begun = Model(0.0, 0.0)
        optimizer = Optimizer(begun, 0.0, 0.0)
        then = later(rank // PER_HOST)
        step = checkpoint.resume(then, begun, optimizer, local_rank=local)
        module("torch").distributed.barrier()
        checkpoint.remove(own)
        momentum = [optimizer.state[each]["momentum_buffer"].values for each in begun.parameters()]
        return nothing, left, step, [each.values for each in begun.parameters()], momentum

    ran = run(folder, act)
    return ran.returned, records(ran.printed)


@pytest.mark.parametrize(
    ("folders", "later", "see"),
    [("aa", "aa", 2), ("ab", "ab", 1), ("ab", "ba", 1)],
    ids=["shared", "local", "local, and rank 0 on the other host"],
)
def test_every_rank_resumes_with_what_rank_0_wrote_on_shared_and_on_local_storage(
    folders: str, later: str, see: int, tmp_path: Path
) -> None:
    returned, found = saved_and_resumed(
        tmp_path, lambda host: tmp_path / folders[host], lambda host: tmp_path / later[host]
    )
    for rank, (nothing, left, *state) in enumerate(returned):
        # The name of the file is its last one from the beginning: nothing else is left beside it.
        assert left == (["checkpoint.pt"] if folders == "aa" or rank < PER_HOST else [])
        assert (nothing, state) == (0, [15, [[1.0, 5.0], [2.0, 10.0]], [[21.0, 24.0], [28.0, 32.0]]])
    [written, resumed] = found
    assert (written["step"], resumed["step"]) == (15, 15)
    assert resumed["sha256"] == written["sha256"]
    assert resumed["files"] == {written["sha256"]: see}
    assert not list(tmp_path.rglob("*.pt"))


def test_a_checkpoint_has_its_name_only_when_all_of_it_is_on_the_disk(tmp_path: Path) -> None:
    def act(_: int) -> Any:
        checkpoint, model = module("checkpoint"), Model(1.0)
        return writes(lambda: checkpoint.save(tmp_path / "folder.d", 1, model, Optimizer(model, 1.0)))

    assert run(tmp_path, act).returned == [SAFE, [], [], []]


def test_the_checkpoint_of_an_example_too(tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        sys.path.insert(0, str(PROGRAM.with_name("examples")))
        path = tmp_path / f"{rank}.d" / "checkpoint.pt"
        return writes(lambda: module("train").save(path, {}))

    assert run(tmp_path, act).returned == [
        [step.replace("folder", str(rank)) for step in SAFE] for rank in range(WORLD)
    ]


def test_a_sample_is_the_time_of_the_slowest_rank_without_what_is_done_around_it(tmp_path: Path) -> None:
    def act(rank: int) -> Any:
        timing, done = module("records"), list[tuple[str, float]]()
        timing.time.perf_counter = lambda: sum(seconds for _, seconds in done)
        parts = ("run", 1.0 + rank), ("before", 10.0), ("after", 100.0)
        run, before, after = (partial(done.append, each) for each in parts)
        device = module("types").SimpleNamespace(type="cpu")
        samples = timing._samples(run, 2, device, before=before, after=after)
        return samples, [name for name, _ in done]

    for samples, calls in run(tmp_path, act).returned:
        assert samples == [float(WORLD)] * 2
        assert calls == ["before", "run", "after"] * (3 + 2), "the first three are not counted"


def meet(port: int, seconds: float) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(PROGRAM / "meet.py"), "127.0.0.1", str(port), str(seconds)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_pod_waits_until_the_first_one_listens(tmp_path: Path) -> None:
    port, begun = free_port(), time.monotonic()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        later = threading.Timer(0.5, server.listen)
        later.start()
        assert meet(port, 30).returncode == 0
        later.join()
    assert time.monotonic() - begun >= 0.5


def test_a_first_pod_that_never_listens_ends_the_wait_with_its_address_and_the_error() -> None:
    port = free_port()
    ran = meet(port, 0)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"# busbar: 127.0.0.1:{port} timed out after 0 s: ")
    assert "refused" in ran.stderr
