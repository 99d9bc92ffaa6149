"""A stack file has the same values for busbar and for the Pulumi engine."""

import json
import subprocess
from pathlib import Path

from busbar.config import engine_yaml
from tests.support.engine import throwaway_project

# YAML 1.1, YAML 1.2 and the engine's parser do not agree on many of them.
PLAIN = """
    on off yes no y n Yes OFF TRUE tRUE ~ null NULL NuLL 12:30 12:30:00 190:20:30 1:2 nan Infinity = <<
    1e3 1.5e3 1E+3 12e03 6e .5 5. -.5 .e3 1_000 1.5_0 1__0 _1 1e1_0 .5e1 1.30 1.10.0 +12 -0 08 09.5 00
    0022 0017 -017 0_17 0x1f 0X1F +0x1f 0o17 0o8 0b11 0b12 "0022" 'on' 2026-11-26 2026-1-2
    2026-11-26T10:00:00Z 9223372036854775808 0xdeadbeefdeadbeef
"""
VALUES = [*PLAIN.split(), "", "2026-11-26 10:00:00", "!!str 12"]


def test_a_plain_value_is_read_as_the_engine_reads_it_or_refused(tmp_path: Path) -> None:
    environment = throwaway_project(tmp_path, "")
    text = "config:\n  x:values:\n" + "".join(f"    - {value}\n" for value in VALUES)
    subprocess.run(
        ["pulumi", "stack", "init", "dev", "--non-interactive"],
        cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    done = subprocess.run(
        ["pulumi", "config", "get", "x:values", "--stack", "dev", "--non-interactive"],
        cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    engine = json.loads(done.stdout)

    document = engine_yaml.compose(text)
    refused = {path[-1] for path, _ in engine_yaml.ambiguous(document)}
    ours = [
        None if index in refused else engine_yaml.construct(engine_yaml.compose(value))
        for index, value in enumerate(VALUES)
    ]
    differing = [
        (value, own, its)
        for index, (value, own, its) in enumerate(zip(VALUES, ours, engine, strict=True))
        if index not in refused and (own, type(own)) != (its, type(its))
    ]
    assert differing == []
    assert len(VALUES) - len(refused) > 40
