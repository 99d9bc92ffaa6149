"""Remarks: unusual lines and differences between hosts, which are shown and decide nothing."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.hosts import differences
from busbar.judge.nccl.diagnose.diagnose import Diagnosis
from busbar.judge.nccl.diagnose.unusual import form
from busbar.judge.nccl.log.binding import short

Kind = Literal["error", "warn", "kernel", "other", "known", "differs"]
ORDER: tuple[Kind, ...] = ("error", "warn", "kernel", "known", "other", "differs")


class Remark(BaseModel):
    """An unusual line, the first of `count` that differ only in numbers, hosts and ranks; line 0: no line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    line: int
    text: str
    count: int = 1


def remarks(context: Context, diagnoses: list[Diagnosis]) -> list[Remark]:
    """All remarks on a log: errors before warnings before the kernel before the rest, the earliest first."""
    log = context.log
    listed = [run.preamble for run in log.runs]
    listed += [log.dangling] if log.dangling is not None else []
    hosts = {short(rank.host) for preamble in listed for rank in preamble.ranks} | {*log.evidence.hosts}
    names = sorted(filter(None, hosts), key=len, reverse=True)
    of_host = re.compile("|".join(map(re.escape, names)) or "(?!)")
    found: dict[tuple[Kind, str], Remark] = {}
    for unusual in log.unusual:
        line = unusual.first
        if unusual.decides or not (unusual.about_hardware or of_host.search(line.text)):
            continue
        key = unusual.sort, of_host.sub("HOST", form(line.text))
        _add(found, key, Remark(kind=unusual.sort, line=line.line, text=line.text, count=unusual.count))
    for each in diagnoses:
        if each.severity == "degraded":
            remark = Remark(kind="known", line=each.line, text=each.evidence, count=each.count)
            _add(found, ("known", each.name), remark)
    ordered = sorted(found.values(), key=lambda remark: (ORDER.index(remark.kind), remark.line))
    return [*ordered, *(Remark(kind="differs", line=0, text=text) for text in differences(context))]


def _add(found: dict[tuple[Kind, str], Remark], key: tuple[Kind, str], new: Remark) -> None:
    same = found.get(key)
    if same is None:
        found[key] = new
        return
    first = min(same, new, key=lambda remark: remark.line)
    found[key] = first.model_copy(update={"count": same.count + new.count})
