"""The facts that preflight stores per host: small, and without anything that changes on its own.

The result goes into the engine's state and, as the previous result, into an environment variable (128 KiB at
most on Linux), so it is compressed: 440 hosts take 5 kB, with rails in different slots 17 kB.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from busbar.finding import Finding
from busbar.hosts.scripts import packed

# PCI addresses of HCAs.
RAIL_PCI, OTHER_PCI = "rail_pci", "other_pci"
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


_RECORDS = TypeAdapter(dict[str, HostRecord])


def pack(hosts: Mapping[str, HostRecord]) -> str:
    """One line, compressed: the facts of most hosts are alike."""
    return packed(_RECORDS.dump_json(dict(hosts)).decode())


def read(text: str) -> dict[str, HostRecord]:
    """All records, from the line that `pack` wrote. Raises ValueError for anything else."""
    try:
        return _RECORDS.validate_json(gzip.decompress(base64.b64decode(text)))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"is not a result of preflight ({type(error).__name__})") from None


def unpack(text: str) -> dict[str, dict[str, Any]]:
    """Host name -> facts, with the digest of its machine-id as `machine`, as `read`."""
    return {name: {**host.facts, "machine": host.machine} for name, host in read(text).items()}


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
