"""The rows on the stress of each node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from busbar.text import counted, listed
from stacks.accept.package.evidence import Untrusted
from stacks.accept.package.rows.kinds import Find, Finding, Outcome, Question, kind, worst
from stacks.accept.package.site import Pool
from stacks.accept.package.soak import THROTTLED

# Those of level 3 that need no other package. Software is tested per host, the others per GPU.
WANTED = (
    "software", "memory", "pcie", "diagnostic", "memory_bandwidth", "targeted_stress", "targeted_power"
)  # fmt: skip
# error_severity of DCGM (DCGM dcgm_errors.h).
CONFIG = 5
_SAMPLE = re.compile(r"\s*(\d{1,9}) (\S+), 0x([0-9A-Fa-f]{1,16})")

Look = Callable[[Pool, dict[str, Any]], Iterator[tuple[Outcome, str]]]


def on_each_host(look: Look) -> Find:
    """A kind that looks at what each worker with an output of dcgmi has printed."""

    def find(asked: Question) -> Finding:
        printed, said = asked.evidence.printed("stress"), list[tuple[Outcome, str]]()
        hosts, failed = (printed.hosts, printed.failed) if printed else ({}, {})
        for name in asked.pool.workers:
            if name in hosts and not hosts[name].get("diag"):
                said.append(("not run", f"{name}: {hosts[name].get('error') or 'dcgmi printed nothing'}"))
            elif name in hosts:
                said += [(state, f"{name}: {what}") for state, what in look(asked.pool, hosts[name])]
            else:
                said.append(("unknown", failed.get(name, f"{name}: no result")))
        good = Finding("pass", f"good on {counted(len(hosts), 'node')}")
        found = worst(said) or (good if said or hosts else Finding("unknown", "there is no result"))
        images = sorted({str(each["image_id"]) for each in hosts.values() if each.get("image_id")})
        return replace(found, reason=f"{found.reason}; image {listed(images)}") if images else found

    return find


def tests_of(text: str) -> dict[str, list[dict[str, Any]]]:
    """Name of a test -> its results, from `dcgmi diag -j` of DCGM 2 to 4. Raises Untrusted."""
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        root = json.loads(text)
        root = root.get("DCGM Diagnostic") or root["DCGM GPU Diagnostic"]
        for category in root.get("test_categories", ()):
            for test in category["tests"]:
                # Older releases have a test per question on the software.
                deployment = category.get("category") == "Deployment"
                name = "software" if deployment else test["name"].lower().replace(" ", "_")
                found.setdefault(name, []).extend({**result} for result in test["results"])
        if error := root.get("runtime_error"):
            raise Untrusted(f"dcgmi diag: {str(error)[:200]}")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Untrusted(f"dcgmi diag printed other JSON than expected: {type(error).__name__}") from None
    return found


def _gpus(result: dict[str, Any]) -> set[str]:
    """The GPUs of a result; older releases list several in one."""
    ids = next((result[key] for key in ("entity_id", "gpu_id", "gpu_ids") if key in result), "")
    return {each.strip() for each in str(ids).split(",")}


def _warnings(result: dict[str, Any]) -> tuple[str, bool]:
    """The warnings of a result, a text in older releases, and whether all are of the configuration."""
    found = result.get("warnings")
    listing = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    texts = [str(each.get("warning"))[:200] for each in listing] or [str(found or "no reason")[:200]]
    return listed(texts, 2), bool(listing) and all(each.get("error_severity") == CONFIG for each in listing)


@kind("stress.diag", "every test of dcgmi diag -r 3 passes on every GPU", required=False)
@on_each_host
def _diag(pool: Pool, printed: dict[str, Any]) -> Iterator[tuple[Outcome, str]]:
    try:
        tests = tests_of(str(printed["diag"]))
    except Untrusted as error:
        yield "unknown", f"{error}; {printed.get('error')}"
        return
    for name, results in tests.items():
        failed: dict[str, set[str]] = {}
        for result in results:
            if str(result.get("status")).lower() == "fail":
                why, is_config = _warnings(result)
                about = "configuration, not hardware: " if is_config else ""
                failed.setdefault(f"{name} fails: {about}{why}", set()).update(_gpus(result))
        yield from (("fail", f"{text} (GPU {listed(sorted(gpus), 8)})") for text, gpus in failed.items())
    for name in WANTED:
        results = tests.get(name, [])
        passed: set[str] = set()
        for result in results:
            status = str(result.get("status"))
            if status.lower() == "pass":
                passed |= _gpus(result)
            elif status.lower() != "fail":
                yield "not run", f"{name}: {status or 'no status'} {str(result.get('info') or '')[:200]}"
        if not results:
            yield "not run", f"{name} is not in the output"
        elif name != "software" and len(passed) < pool.required.gpus:
            yield "not run", f"{name} passed on {len(passed)} of {pool.required.gpus} GPUs"


@kind("stress.clocks", "no GPU is throttled under stress", required=False)
@on_each_host
def _clocks(pool: Pool, printed: dict[str, Any]) -> Iterator[tuple[Outcome, str]]:
    samples = [_SAMPLE.match(line) for line in str(printed.get("clocks")).splitlines()]
    seen = [match.groups() for match in samples if match]
    if len({gpu for _, gpu, _ in seen}) < pool.required.gpus:
        yield "unknown", "nvidia-smi did not tell the throttle reasons of every GPU"
    for count, gpu, mask in seen:
        if reasons := [text for bit, text in THROTTLED.items() if int(mask, 16) & bit]:
            yield "fail", f"{gpu} throttled in {counted(int(count), 'sample')}: {', '.join(reasons)}"
