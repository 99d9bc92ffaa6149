"""Runs the preflight script on one host over SSH; a failure becomes a finding, never an exception."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from busbar.hosts import scripts
from busbar.hosts.finding import Finding
from busbar.hosts.host import Host
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.preflight.report import Report

# nvidia-smi alone may take 60 s (host/preflight-hardware.sh), and 6 x 20 s more (host/preflight-health.sh).
SCRIPT_SECONDS = 195
_FIX = (
    "log in and look for what hangs or fails: dmesg | tail (nvidia-smi, a dead mount, systemctl), an `exec` "
    "in .bashrc; or run host/preflight.sh there by hand, as its first lines say"
)


@dataclass(frozen=True)
class Answer:
    """A host's report, and the local time (epoch, seconds) before and after the script ran."""

    report: Report
    clock: tuple[float, float]


async def query(
    hosts: Hosts, host: Host, values: Mapping[str, str], *, deliver: bool = False, also: str = ""
) -> Answer | Finding:
    """Run `host/preflight.sh` with `values` on one host.

    `deliver`: the host keeps the script that its Command runs later (busbar.hosts.scripts). `also`: a script
    of a capability that reports more.
    """
    payload = scripts.delivery(host.role) if deliver else {}
    if also:
        payload["also"] = also
    try:
        facts = await hosts.run(host, "preflight", values, payload, seconds=SCRIPT_SECONDS)
        clock = hosts.connected[host.name], time.time()
        return Answer(Report.model_validate(facts), clock)
    except UnreachableError as error:
        return error.finding
    except ScriptError as error:
        return Finding(host.name, "error", error.what, error.fix or _FIX)
    except ValueError as error:  # pydantic's ValidationError is one
        what = f"preflight printed another report than expected: {str(error).splitlines()[0]}"
        return Finding(host.name, "error", what, _FIX)
