"""What goes wrong on a real site, done on purpose. Each test leaves the lab as it found it."""

import re
import shlex
import sys

import pytest

from tests.support.lab import Lab, eventually

READYZ = "curl -sk -o /dev/null -w '%{http_code}' --max-time 5 https://10.77.0.10:6443/readyz || true"


def _answers_steadily(lab: Lab) -> bool:
    return lab.ssh("lb-1", f"for _ in 1 2 3 4 5 6; do {READYZ}; echo; done").split() == ["200"] * 6


def _votes(lab: Lab, server: str) -> bool:
    conditions = lab.conditions(server)
    return conditions["Ready"] == "True" and conditions["EtcdIsVoter"] == "True"


def test_the_api_outlives_a_stopped_server(lab: Lab) -> None:
    lab.ssh("server-2", "systemctl stop k3s")
    try:
        eventually(lambda: _answers_steadily(lab), 120, "six good answers in a row with one server down")
    finally:
        lab.ssh("server-2", "systemctl start --no-block k3s")
    eventually(lambda: _votes(lab, "server-2"), 120, "server-2 Ready and a voter again")


def test_a_frozen_apiserver_gets_no_more_traffic_though_its_port_is_open(lab: Lab) -> None:
    listener = "ss -Hltnp 'sport = :6443' | grep -o 'pid=[0-9]*' | head -1 | cut -d= -f2"
    process = lab.ssh("server-3", listener).strip()
    lab.ssh("server-3", f"kill -STOP {process}")
    try:
        eventually(lambda: _answers_steadily(lab), 120, "six good answers in a row with one apiserver frozen")
        assert lab.ssh("lb-1", "timeout 3 bash -c '</dev/tcp/10.77.0.13/6443' && echo open").strip() == "open"
    finally:
        lab.ssh("server-3", f"kill -CONT {process}")
    eventually(lambda: _votes(lab, "server-3"), 120, "server-3 Ready and a voter again")


@pytest.mark.drill
@pytest.mark.parametrize("command", ["preflight", "verify"])
def test_a_server_whose_clock_is_ten_minutes_off_is_named(lab: Lab, command: str) -> None:
    """All hosts of the lab have the clock of one kernel: what is moved is what the host says of it."""
    date = "/bin/date -d '+10 minutes'"
    lines = {
        "sbin/date": ["#!/bin/sh", f'exec {date} "$@"'],
        # As the first shell of a login bash would read .bashrc in its place.
        "bin/bash": ["#!/bin/sh", 'SHLVL=2 BASH_ENV=/usr/local/lib/moved-clock exec /bin/bash "$@"'],
        "lib/moved-clock": ["unset EPOCHREALTIME", f"EPOCHREALTIME=$({date} +%s.%N)"],
    }
    files = {f"/usr/local/{name}": shlex.join(text) for name, text in lines.items()}
    written = (f"printf '%s\\n' {text} > {file} && chmod 755 {file}" for file, text in files.items())
    lab.ssh("server-2", " && ".join(written))
    try:
        done = lab.run(sys.executable, "-m", "busbar", command, "dev")
    finally:
        lab.ssh("server-2", f"rm {' '.join(files)}")
    assert done.returncode == 1, done.stdout
    printed = " ".join((done.stdout + done.stderr).split())
    assert re.search(r"server-2.{0,30} clock is (5[5-9]|60)\d s ahead of this machine's", printed), printed
