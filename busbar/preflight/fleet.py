"""The hosts among themselves: what no host can know alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from busbar.preflight.facts import Passed
from busbar.preflight.report import Report
from busbar.preflight.spec import Finding, Spec

# What must be the same on all workers of a pool: the fact, how bad a difference is, and its name in words.
_ALIKE = (
    ("driver", "error", "driver"),
    ("gpu_model", "error", "GPU model"),
    ("hca_firmware", "warning", "HCA firmware"),
)


def judge(spec: Spec, reports: Mapping[str, Report], passed: Mapping[str, Passed]) -> list[Finding]:
    """Findings about several hosts. `reports`: of those asked now; `passed`: all with facts."""
    return [*_twins(spec, passed), *_hostnames(reports), *_unlike(spec, passed)]


def _twins(spec: Spec, passed: Mapping[str, Passed]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for target in spec.hosts:
        host = passed.get(target.name)
        if host is None:
            continue
        first = seen.setdefault(host.machine, target.name)
        if first != target.name:
            yield Finding(
                target.name,
                "error",
                f"has the machine-id of {first}: one machine listed twice, or a clone",
                "Correct the address; or on the clone: rm /etc/machine-id; systemd-machine-id-setup; reboot",
            )


def _hostnames(reports: Mapping[str, Report]) -> Iterator[Finding]:
    names: dict[str, str] = {}
    for name, report in reports.items():
        first = names.setdefault(report.hostname, name)
        if first != name:
            yield Finding(
                name,
                "error",
                f"calls itself {report.hostname!r}, as {first} does",
                f"hostnamectl set-hostname {name}: no two nodes may share a host name",
            )


def _unlike(spec: Spec, passed: Mapping[str, Passed]) -> Iterator[Finding]:
    pools: dict[str, list[str]] = defaultdict(list)
    for target in spec.hosts:
        if target.pool and target.name in passed:
            pools[target.pool].append(target.name)
    for pool, names in pools.items():
        for key, level, words in _ALIKE:
            values = {name: _text(passed[name].facts.get(key)) for name in names}
            counts = Counter(values.values())
            common = counts.most_common(1)[0][0]
            for name in names:
                if values[name] != common:
                    yield Finding(
                        name,
                        "error" if level == "error" else "warning",
                        f"has {words} {values[name] or 'none'}, most of pool {pool} have {common or 'none'}",
                        f"Bring all workers of a pool to the same {words}",
                    )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
