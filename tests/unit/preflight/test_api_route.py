"""The Kubernetes API must be reachable before anything is changed."""

import asyncio

import pytest

from busbar.finding import Finding
from busbar.preflight.survey import check_api_route
from tests.unit.preflight.samples import HOST_KEY, a_host, spec

BASTION = {"address": "127.0.0.1", "host_key": HOST_KEY}
# The kernel refuses to connect there: nothing is sent.
NOWHERE = "255.255.255.255"


def check(address: str, **bastion: str) -> list[Finding]:
    hosts = (a_host("lb-1", "lb", address=address), a_host("worker-1", address=NOWHERE))
    return asyncio.run(check_api_route(spec(*hosts, bastion={**BASTION, **bastion}), ["lb-1"]))


def test_an_api_that_only_the_bastion_reaches_is_an_error_with_the_way_out() -> None:
    (finding,) = check(NOWHERE)
    assert (finding.host, finding.kind) == ("this machine", "error")
    assert f"{NOWHERE}:6443 (lb-1) cannot be reached" in finding.what
    assert "ssh.bastion.api_proxy_url" in str(finding.fix)
    assert check("127.0.0.1") == [], "a refused connection shows that there is a way"


def test_with_a_proxy_only_the_proxy_must_answer() -> None:
    (finding,) = check(NOWHERE, api_proxy_url="http://127.0.0.1:1")
    assert "the proxy http://127.0.0.1:1 cannot be reached: connection refused" in finding.what

    async def answering() -> list[Finding]:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            hosts = (a_host("lb-1", "lb", address=NOWHERE),)
            return await check_api_route(spec(*hosts, bastion={**BASTION, "api_proxy_url": url}), ["lb-1"])

    assert asyncio.run(answering()) == []


def test_without_a_bastion_the_port_is_asked_too_and_the_finding_does_not_speak_of_one() -> None:
    (finding,) = asyncio.run(check_api_route(spec(a_host("lb-1", "lb", address=NOWHERE)), ["lb-1"]))
    assert f"{NOWHERE}:6443 (lb-1) cannot be reached" in finding.what
    assert "bastion" not in finding.what + str(finding.fix)


@pytest.mark.parametrize(("with_k3s", "level"), [(False, "warning"), (True, "error")])
def test_an_endpoint_of_the_site_may_come_with_the_first_server(with_k3s: bool, level: str) -> None:
    asked = spec(a_host("cp-1", "server", address="127.0.0.1")).model_copy(update={"api_endpoint": NOWHERE})
    (finding,) = asyncio.run(check_api_route(asked, ["cp-1"], with_k3s=with_k3s))
    assert (finding.host, finding.kind) == ("this machine", level)
    assert f"{NOWHERE}:6443 (api_endpoint) cannot be reached" in finding.what
    assert asyncio.run(check_api_route(asked, [], with_k3s=with_k3s)) == []


@pytest.mark.parametrize(("role", "answered"), [("server", ["a"]), ("lb", [])])
def test_only_load_balancers_that_answered_by_ssh_are_dialled(role: str, answered: list[str]) -> None:
    assert asyncio.run(check_api_route(spec(a_host("a", role, address=NOWHERE)), answered)) == []
