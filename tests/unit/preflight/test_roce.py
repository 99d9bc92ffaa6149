"""What RoCE rails do with congestion, from the texts that programs and drivers print on real hosts."""

from typing import Any

import pytest

from busbar.finding import Finding
from busbar.preflight.host_checks import check_host, host_facts
from busbar.preflight.network_checks import flow_of
from busbar.preflight.report import Qos
from busbar.preflight.spec import HostRequirements
from tests.support.reports import CLOCK, hca, report
from tests.unit.preflight.samples import REQUIRED, a_host

RATES = "".join(
    f"tc: {tc} ratelimit: unlimited, tsa: vendor\n\t priority:  {priority}\n"
    for tc, priority in enumerate((1, 0, 2, 3, 4, 5, 6, 7))
)
DSCPS = "".join(
    f"\tprio:{priority} dscp:{','.join(f'{8 * priority + n:02}' for n in reversed(range(8)))},\n"
    for priority in range(8)
)


def mlnx_qos(trust: str = "dscp", pfc: str = "0   0   0   1   0   0   0   0", dscps: str = DSCPS) -> str:
    """What mlnx_qos of DOCA-OFED prints."""
    return (
        f"DCBX mode: OS controlled\nPriority trust state: {trust}\n"
        + (f"dscp2prio mapping:\n{dscps}default priority:\n" if trust == "dscp" else "")
        + "Receive buffer size (bytes): 19872,220896,0,0,0,0,0,0,max_buffer_size=4151520\nCable len: 7\n"
        f"PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     {pfc}   \n"
        f"\tbuffer      0   0   0   1   0   0   0   0   \n{RATES}"
    )


DCB_PFC = "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off \n"
DCB_APP = "dscp-prio " + " ".join(f"{dscp}:{dscp >> 3}" for dscp in range(64)) + " \n"


def qos(**texts: str | None) -> dict[str, Any]:
    nothing = dict.fromkeys(Qos.model_fields)
    return Qos.model_validate(nothing | texts).model_dump()


def described(traffic_class: int = 106, service_level: int = 0, **texts: str | None) -> str:
    return str(flow_of(Qos.model_validate(qos(**texts)), traffic_class, service_level))


PRIORITY_3, NO_PRIORITY = "priority 3, PFC on", "priority unknown, PFC unknown"
QOS = mlnx_qos()
OF_DSCP_26, OF_OTHERS = mlnx_qos(dscps="\tprio:5 dscp:26,\n"), mlnx_qos(dscps="\tprio:0 dscp:07,06,\n")
DCB_OFF = DCB_PFC.replace("3:on", "3:off")


@pytest.mark.parametrize(
    ("texts", "state"),
    [
        ({"mlnx_qos": QOS}, f"trust dscp, {PRIORITY_3}, ECN unknown"),
        ({"dcb_pfc": DCB_PFC, "dcb_app": DCB_APP}, f"trust dscp, {PRIORITY_3}, ECN unknown"),
        ({"mlnx_qos": QOS, "dcb_pfc": DCB_OFF, "dcb_app": ""}, f"trust dscp, {PRIORITY_3}, ECN unknown"),
        ({"mlnx_qos": OF_DSCP_26}, "trust dscp, priority 5, PFC off, ECN unknown"),
        ({"mlnx_qos": OF_OTHERS}, f"trust dscp, {NO_PRIORITY}, ECN unknown"),
        ({"mlnx_qos": mlnx_qos("pcp")}, "trust pcp, priority 0, PFC off, ECN unknown"),
        ({"dcb_pfc": DCB_PFC, "dcb_app": ""}, "trust pcp, priority 0, PFC off, ECN unknown"),
        ({"dcb_pfc": DCB_PFC}, f"trust unknown, {NO_PRIORITY}, ECN unknown"),
        ({"dcb_pfc": DCB_OFF}, "trust unknown, priority unknown, PFC off, ECN unknown"),
        ({"ecn_np": "1" * 8, "ecn_rp": "1" * 8}, f"{NO_PRIORITY}, ECN on"),
        ({"mlnx_qos": QOS, "ecn_np": "00010000", "ecn_rp": "00010000"}, f"{PRIORITY_3}, ECN on"),
        ({"mlnx_qos": QOS, "ecn_np": "1" * 8, "ecn_rp": "11101111"}, f"{PRIORITY_3}, ECN off"),
        ({"mlnx_qos": QOS, "ecn_np": "1" * 8}, f"{PRIORITY_3}, ECN unknown"),
        ({"mlnx_qos": QOS, "ecn_np": "1111", "ecn_rp": "1111"}, f"{PRIORITY_3}, ECN unknown"),
        ({"mlnx_qos": "Priority trust state is not supported\n"}, "trust unknown, priority unknown, PFC"),
        ({}, f"trust unknown, {NO_PRIORITY}, ECN unknown"),
    ],
)
def test_a_rail_has_the_state_of_its_traffic_class_s_priority(texts: dict[str, Any], state: str) -> None:
    assert described(**texts).startswith("traffic class 106 (DSCP 26), ")
    assert state in described(**texts)


def test_the_drivers_override_replaces_the_traffic_class_of_nccl() -> None:
    found = flow_of(Qos.model_validate(qos(mlnx_qos=mlnx_qos(), traffic_class="Global tclass=106\n")), 0, 0)
    assert (found.traffic_class, found.priority, found.pfc) == (106, 3, True)
    unset = flow_of(Qos.model_validate(qos(mlnx_qos=mlnx_qos(), traffic_class="")), 0, 0)
    assert (unset.traffic_class, unset.priority, unset.pfc) == (0, 0, False)


def test_a_port_that_trusts_pcp_uses_the_service_level() -> None:
    assert "trust pcp, priority 3, PFC on" in described(service_level=3, mlnx_qos=mlnx_qos("pcp"))
    assert "priority unknown" in described(service_level=9, mlnx_qos=mlnx_qos("pcp"))


ROCE = REQUIRED.model_copy(
    update={"link_layer": "ethernet", "rails": 2, "flow_control": "warn", "traffic_class": 106}
)


def rails(*states: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        hca(f"mlx5_{n}", link_layer="Ethernet", netdevs=[f"ens{n}np0"], qos=state)
        for n, state in enumerate(states)
    ]


def findings(required: HostRequirements, *states: dict[str, Any]) -> list[Finding]:
    return check_host(a_host(), required, report(hcas=rails(*states)), clock=CLOCK)


PROTECTED = qos(mlnx_qos=mlnx_qos())
LOSSY = qos(mlnx_qos=mlnx_qos(pfc="0   0   0   0   0   0   0   0"), ecn_np="0" * 8, ecn_rp="0" * 8)
MARKED = LOSSY | {"ecn_np": "1" * 8, "ecn_rp": "1" * 8}


@pytest.mark.parametrize("state", [PROTECTED, MARKED], ids=["PFC", "ECN"])
def test_a_rail_with_pfc_or_with_ecn_has_no_finding(state: dict[str, Any]) -> None:
    assert findings(ROCE, state, state) == []


def test_a_rail_with_neither_is_named_with_what_was_read() -> None:
    (finding,) = findings(ROCE, PROTECTED, LOSSY)
    assert (finding.host, finding.kind) == ("worker-1", "warning")
    assert finding.what == (
        "RoCE rails mlx5_1 have traffic class 106 (DSCP 26), trust dscp, priority 3, PFC off, ECN off: "
        "packets are lost when the fabric is congested"
    )
    assert "--pfc 0,0,0,1,0,0,0,0" in str(finding.fix)


@pytest.mark.parametrize(
    "state", [qos(), LOSSY | {"ecn_np": None, "ecn_rp": None}, None], ids=["nothing", "no ECN", "no report"]
)
def test_what_cannot_be_read_is_not_a_pass(state: dict[str, Any]) -> None:
    (finding,) = findings(ROCE, PROTECTED, state)
    assert finding.kind == "warning"
    assert "RoCE rails mlx5_1 have " in finding.what
    assert "unknown" in finding.what
    assert "nothing shows that no packets are lost" in finding.what


def test_a_pool_can_require_it_or_ignore_it() -> None:
    for setting, levels in (("require", ["error", "error"]), ("ignore", [])):
        required = ROCE.model_copy(update={"flow_control": setting})
        assert [finding.kind for finding in findings(required, LOSSY, qos())] == levels


def test_the_states_of_the_rails_are_facts_of_a_host_each_once() -> None:
    facts = host_facts(ROCE, report(hcas=rails(PROTECTED, PROTECTED)))
    assert facts["roce"] == ["traffic class 106 (DSCP 26), trust dscp, priority 3, PFC on, ECN unknown"]
    assert "roce" not in host_facts(REQUIRED, report())
