"""The facts that preflight stores per host: small, and without anything that changes on its own.

The result goes into the engine's state and, as the previous result, into an environment variable (128 KiB at
most on Linux), so equal facts are stored once: 440 hosts take some 20 KB.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from busbar.finding import Finding

SCHEMA = 2
# PCI addresses of HCAs. Kept apart from the other facts: they may differ from host to host.
RAIL_PCI = "rail_pci"
OTHER_PCI = "other_pci"
_ADDRESSES = (RAIL_PCI, OTHER_PCI)
# When preflight found no K3s there (epoch, seconds): a Node that is older is of another installation.
WITHOUT_K3S = "without_k3s"


@dataclass(frozen=True)
class HostRecord:
    """A host that passed: fingerprint of its requirements, digest of its machine-id, and facts.

    `warned`: digests of the warnings about it, which the next update does not print once more.
    """

    fingerprint: str
    machine: str
    facts: Mapping[str, Any]
    warned: tuple[str, ...] = ()


def pack(hosts: Mapping[str, HostRecord]) -> str:
    """One compact JSON line; equal facts are stored once."""
    groups: dict[str, int] = {}
    index: dict[str, list[str | int]] = {}
    for name, host in hosts.items():
        addresses = {key: host.facts[key] for key in _ADDRESSES if key in host.facts}
        others = {key: value for key, value in host.facts.items() if key not in _ADDRESSES}
        texts = [json.dumps(part, sort_keys=True) for part in (others, addresses)]
        index[name] = [
            host.fingerprint,
            host.machine,
            *(groups.setdefault(text, len(groups)) for text in texts),
            *host.warned,
        ]
    content = {"schema": SCHEMA, "groups": [json.loads(text) for text in groups], "hosts": index}
    return json.dumps(content, separators=(",", ":"))


def unpack(text: str) -> dict[str, dict[str, Any]]:
    """Host name -> facts, from the line that `pack` wrote. Raises ValueError for anything else."""
    return {name: dict(host.facts) for name, host in read(text).items()}


def read(text: str) -> dict[str, HostRecord]:
    """All records of a result. Raises ValueError if the text is not one."""
    try:
        content = json.loads(text)
        if content["schema"] != SCHEMA:
            raise ValueError(f"is a result of preflight with schema {content['schema']!r}, expected {SCHEMA}")
        groups = content["groups"]
        return {
            name: HostRecord(entry[0], entry[1], groups[entry[2]] | groups[entry[3]], tuple(entry[4:]))
            for name, entry in content["hosts"].items()
        }
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"is not a result of preflight: {error!r}") from None


def with_warnings(records: Mapping[str, HostRecord], findings: Iterable[Finding]) -> dict[str, HostRecord]:
    """The records, with the warnings among the findings noted."""
    noted = dict(records)
    for each in findings:
        if each.kind == "warning" and not each.unreachable and each.host in noted:
            known = noted[each.host]
            noted[each.host] = replace(known, warned=tuple(dict.fromkeys([*known.warned, _digest(each)])))
    return noted


def was_printed(finding: Finding, previous: Mapping[str, HostRecord]) -> bool:
    """Whether a warning about the host was printed by an earlier update."""
    known = previous.get(finding.host)
    return finding.kind == "warning" and known is not None and _digest(finding) in known.warned


def _digest(finding: Finding) -> str:
    return hashlib.sha256(finding.what.encode()).hexdigest()[:8]


def rail_addresses(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The PCI addresses of the rails of all hosts, each once, sorted. `hosts`: facts by host name."""
    return sorted({address for facts in hosts.values() for address in facts.get(RAIL_PCI, ())})


def unreachable(hosts: Mapping[str, HostRecord]) -> set[str]:
    """The hosts that passed before but did not respond the last time; they are queried again."""
    return {name for name, host in hosts.items() if not host.fingerprint}


def machine(host: HostRecord) -> str:
    """The digest of the machine-id and, if known, after a space the time (epoch, s) without K3s."""
    return " ".join(map(str, [host.machine, *filter(None, [host.facts.get(WITHOUT_K3S)])]))
