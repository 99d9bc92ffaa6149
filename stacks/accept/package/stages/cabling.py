"""The cables of the fabric: one host of the fabric sees all of them."""

from __future__ import annotations

import base64
import binascii
import zlib

from busbar.exits import NoVerdict
from stacks.accept.package.evidence import PRINTED, Printed, write_json
from stacks.accept.package.rows.cabling import has_infiniband, rails_of
from stacks.accept.package.stages.inventory import ask_workers
from stacks.accept.package.stages.measuring import measure_on
from stacks.accept.package.stages.running import Planned, Running
from stacks.accept.package.wiring import MAX_TEXT, Fabric, write_design

# ibnetdiscover takes 5 s on a fabric of 440 nodes.
SECONDS = 150
# Hosts that are asked until one sees the fabric.
TRIES = 3


def discover(on: Running) -> Printed:
    """The fabric as one of the workers sees it. Raises NoVerdict where none does."""
    pools = [pool for pool in on.site.pools.values() if has_infiniband(pool)]
    if not pools:
        raise NoVerdict("no pool has InfiniBand")
    why = "every worker is in quarantine"
    for name in [name for pool in pools for name in pool.workers][:TRIES]:
        found = measure_on(on, [name], "fabric", SECONDS)
        printed = found.hosts.get(name, {})
        why = found.failed.get(name) or f"{name}: {printed.get('error')}"
        if not found.failed and not printed.get("error"):
            return found.model_copy(update={"hosts": {name: {**printed, "text": _text(printed)}}})
    raise NoVerdict(why)


def _text(printed: dict[str, object]) -> str:
    """The text, in bounded memory."""
    try:
        data = base64.b64decode(str(printed.get("text")), validate=True)
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, MAX_TEXT + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise NoVerdict(f"the output of ibnetdiscover cannot be unpacked: {error}") from None
    if len(text) > MAX_TEXT:
        raise NoVerdict(f"ibnetdiscover printed more than {MAX_TEXT >> 20} MiB")
    return text.decode(errors="replace")


def cabling(on: Running) -> dict[str, str]:
    """Keep the fabric. Where it cannot be seen, no pool has a result."""
    notes = {
        name: "the pool has no InfiniBand" for name, pool in on.site.pools.items() if not has_infiniband(pool)
    }
    try:
        write_json(on.at("cabling") / PRINTED, discover(on).model_dump(mode="json"))
    except NoVerdict as error:
        notes = {name: str(error) for name in on.site.pools} | notes
    return notes


def as_built(on: Running) -> str:
    """The design of the fabric as it is built. Raises NoVerdict where it cannot be seen."""
    reports = ask_workers(on).hosts
    [(host, printed)] = discover(on).hosts.items()
    try:
        fabric = Fabric.read(printed["text"])
    except ValueError as error:
        raise NoVerdict(f"{host}: {error}") from None
    pools = [pool for pool in on.site.pools.values() if has_infiniband(pool)]
    rails = {node: hcas for pool in pools for node, hcas in rails_of(pool, reports).items()}
    if not any(guid in fabric.hcas for hcas in rails.values() for guid in hcas.values()):
        raise NoVerdict(f"no rail of a worker is in the fabric that {host} sees")
    return write_design(fabric, rails)


STAGE = Planned("cabling", cabling, False, lambda nodes: 60, logs_in=True)
