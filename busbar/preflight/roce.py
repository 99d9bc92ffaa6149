"""Whether the congestion of RoCE rails is controlled on the host: by PFC, or by ECN (DCQCN).

A RoCE packet carries a traffic class. Its upper six bits, the DSCP, choose one of 8 priorities where the port
trusts DSCPs; otherwise the service level is the priority. PFC and ECN are on or off per priority.

Sources: docs.nvidia.com, MLNX_EN and DOCA-OFED, Quality of Service, Explicit Congestion Notification;
Linux drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c (a port that does not trust DSCPs has no DSCP entries
in DCB's APP table), drivers/infiniband/hw/mlx5/qp.c; dcb-pfc(8), dcb-app(8).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from busbar.hosts.finding import Check, Level
from busbar.preflight.rails import choose
from busbar.preflight.report import Hca, Qos
from busbar.preflight.spec import HostRequirements

PRIORITIES = 8
_MLNX_TRUST = re.compile(r"Priority trust state: (?P<trust>dscp|pcp)\b")
_MLNX_DSCP = re.compile(r"prio:(?P<priority>[0-7]) dscp:(?P<dscps>[\d,]+)")
_MLNX_PFC = re.compile(r"PFC configuration:\s+priority(?:\s+\d){8}\s+enabled(?P<enabled>(?:\s+[01]){8})")
_DCB_PFC = re.compile(r"prio-pfc(?P<enabled>(?:\s+[0-7]:(?:on|off)){8})")
_DCB_APP = re.compile(r"(?P<dscp>\d+):(?P<priority>[0-7])")
_OVERRIDE = re.compile(r"Global tclass=(?P<value>\d+)")

_NOT_READ = Qos(mlnx_qos=None, dcb_pfc=None, dcb_app=None, ecn_np=None, ecn_rp=None, traffic_class=None)


@dataclass(frozen=True)
class Flow:
    """The treatment of NCCL's packets by a rail; None: cannot be read."""

    traffic_class: int
    trust: str | None
    priority: int | None
    pfc: bool | None
    ecn: bool | None

    @property
    def is_controlled(self) -> bool:
        """Whether PFC or ECN is known to be on."""
        return self.pfc is True or self.ecn is True

    @property
    def is_known(self) -> bool:
        """Whether both are known."""
        return self.pfc is not None and self.ecn is not None

    def __str__(self) -> str:
        return (
            f"traffic class {self.traffic_class} (DSCP {self.traffic_class >> 2}), trust "
            f"{self.trust or 'unknown'}, priority {'unknown' if self.priority is None else self.priority}, "
            f"PFC {_state(self.pfc)}, ECN {_state(self.ecn)}"
        )


def check_flow_control(required: HostRequirements, hcas: Iterable[Hca]) -> Iterator[Check]:
    """Checks (level, what, fix) for rails without PFC and ECN, and where neither is known to be on."""
    if required.flow_control == "ignore":
        return
    level: Level = "error" if required.flow_control == "require" else "warning"
    rails: dict[Flow, list[str]] = defaultdict(list)
    for name, flow in flows(required, hcas).items():
        rails[flow].append(name)
    for flow, names in rails.items():
        if flow.is_controlled:
            continue
        if flow.is_known:
            pfc = ",".join("1" if each == flow.priority else "0" for each in range(PRIORITIES))
            yield (
                level,
                f"RoCE rails {', '.join(names)} have {flow}: packets are lost when the fabric is congested",
                f"mlnx_qos -i INTERFACE --trust dscp --pfc {pfc}, and the same on the switches; or set "
                "NCCL_IB_TC in validation.env to the traffic class that the fabric protects",
            )
        else:
            yield (
                level,
                f"RoCE rails {', '.join(names)} have {flow}: nothing shows that no packets are lost when "
                "the fabric is congested",
                "install mlnx_qos (DOCA-OFED) or dcb (iproute2 5.12 or later), which preflight reads; or set "
                "pools.*.flow_control: ignore",
            )


def flows(required: HostRequirements, hcas: Iterable[Hca]) -> dict[str, Flow]:
    """Name of each rail of a RoCE pool -> its flow."""
    return {
        name: flow_of(port.qos or _NOT_READ, required.traffic_class, required.service_level)
        for name, port in choose(hcas, required).ports.items()
    }


def flow_of(qos: Qos, traffic_class: int, service_level: int) -> Flow:
    """The flow of packets with this traffic class and service level; the driver's override comes first."""
    if override := _OVERRIDE.search(qos.traffic_class or ""):
        traffic_class = int(override["value"])
    trust, priorities, pfc = _from_mlnx_qos(qos) if qos.mlnx_qos is not None else _from_dcb(qos)
    priority = None
    if trust == "dscp":
        priority = priorities.get(traffic_class >> 2)
    elif trust == "pcp":
        priority = service_level if service_level < PRIORITIES else None
    return Flow(traffic_class, trust, priority, _at(pfc, priority), _ecn(qos, priority))


def _from_mlnx_qos(qos: Qos) -> tuple[str | None, Mapping[int, int], Sequence[bool] | None]:
    text = qos.mlnx_qos or ""
    trust = _MLNX_TRUST.search(text)
    priorities = {
        int(dscp): int(match["priority"])
        for match in _MLNX_DSCP.finditer(text)
        for dscp in match["dscps"].split(",")
        if dscp
    }
    pfc = _MLNX_PFC.search(text)
    return (
        trust["trust"] if trust else None,
        priorities,
        [each == "1" for each in pfc["enabled"].split()] if pfc else None,
    )


def _from_dcb(qos: Qos) -> tuple[str | None, Mapping[int, int], Sequence[bool] | None]:
    pfc = _DCB_PFC.search(qos.dcb_pfc or "")
    enabled = dict(each.split(":") for each in pfc["enabled"].split()) if pfc else {}
    states = [enabled[str(n)] == "on" for n in range(PRIORITIES)] if len(enabled) == PRIORITIES else None
    if qos.dcb_app is None:
        return None, {}, states
    priorities = {int(match["dscp"]): int(match["priority"]) for match in _DCB_APP.finditer(qos.dcb_app)}
    return "dscp" if priorities else "pcp", priorities, states


def _ecn(qos: Qos, priority: int | None) -> bool | None:
    """Whether ECN is on. Every rail receives and sends, so DCQCN must be on at both points."""
    points = [_digits(text) for text in (qos.ecn_np, qos.ecn_rp)]
    found = [_at(states, priority) for states in points]
    if False in found:
        return False
    return None if None in found else True


def _digits(text: str | None) -> Sequence[bool] | None:
    if text is None or not re.fullmatch(r"[01]{8}", text):
        return None
    return [each == "1" for each in text]


def _at(states: Sequence[bool] | None, priority: int | None) -> bool | None:
    """The state of a priority. If the priority is unknown: the common state of all, else None."""
    if states is None:
        return None
    if priority is None:
        return states[0] if len(set(states)) == 1 else None
    return states[priority]


def _state(known: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[known]
