"""The facts line of a server."""

from __future__ import annotations

import json

import pytest

from busbar.hosts.server_output import server_facts

FACTS = {"node": "server-1", "version": "v1.35.6+k3s1", "ca_sha256": "ab" * 32, "ca_pem": "-----BEGIN"}


def test_the_facts_of_a_server_are_its_version_and_the_ca_that_tokens_pin() -> None:
    facts = server_facts(json.dumps(FACTS))
    assert (facts.version, facts.ca_sha256, facts.ca_pem) == ("v1.35.6+k3s1", "ab" * 32, "-----BEGIN")


@pytest.mark.parametrize("stdout", ["", "Welcome to host 1!", "[]", '{"version": "v1.35.6+k3s1"}'])
def test_anything_else_is_refused_with_what_came(stdout: str) -> None:
    with pytest.raises(ValueError, match=r"without a facts line"):
        server_facts(stdout)
