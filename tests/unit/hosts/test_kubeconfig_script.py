"""When the kubeconfig is read again, and K3s restarted, before the certificates end after 365 days."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest

from busbar.hosts import k3s
from tests.unit.hosts.bash import run


def kubeconfig(folder: Path, name: str, days: int) -> Path:
    """A kubeconfig whose client certificate is valid for `days`."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", "/dev/null", "-out", f"{folder}/{name}.crt", "-days", str(days), "-subj", "/CN=admin"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    data = base64.b64encode((folder / f"{name}.crt").read_bytes()).decode()
    path = folder / name
    path.write_text(f"users:\n- name: default\n  user:\n    client-certificate-data: {data}\n")
    return path


@pytest.mark.parametrize(("days", "enough"), [(365, True), (115, True), (100, False), (1, False)])
def test_a_kubeconfig_is_good_enough_with_110_days_left(tmp_path: Path, days: int, enough: bool) -> None:
    file = kubeconfig(tmp_path, "k3s.yaml", days)
    done = run("kubeconfig", f"KUBECONFIG_FILE={file}; fails ends_soon")
    assert (done.returncode == 0) is enough, done.stderr


def test_near_the_end_k3s_is_restarted_and_the_renewed_kubeconfig_is_read(tmp_path: Path) -> None:
    file, renewed = kubeconfig(tmp_path, "k3s.yaml", 20), kubeconfig(tmp_path, "renewed", 365)
    restart = (
        f"keep_quorum() {{ touch {tmp_path}/others-are-enough; }}; "
        f'systemctl() {{ [[ -e {tmp_path}/others-are-enough && "$*" == "--no-block restart k3s" ]] && '
        f"cp {renewed} {file}; }}"
    )
    done = run(
        "kubeconfig",
        f"KUBECONFIG_FILE={file} LOCK_FILE={tmp_path}/lock; {restart}; "
        "begin() { :; }; server_answers() { [[ $1 == 127.0.0.1 ]]; }; main",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kubeconfig"] == renewed.read_text().strip()


def test_a_kubeconfig_that_is_not_renewed_is_an_error(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "k3s.yaml", 20)
    done = run(
        "kubeconfig",
        f"KUBECONFIG_FILE={file}; RENEWAL_DEADLINE=0; keep_quorum() {{ :; }}; systemctl() {{ :; }}; renew",
    )
    assert done.returncode == 1
    assert "K3s did not renew its certificates" in done.stderr


def test_the_trigger_changes_every_90_days_and_not_in_between() -> None:
    start = date(2026, 1, 1)
    numbers = [k3s.kubeconfig_renewal(start + timedelta(days=day)) for day in range(365)]
    changes = [day for day in range(1, 365) if numbers[day] != numbers[day - 1]]
    assert {later - earlier for earlier, later in itertools.pairwise(changes)} == {90}


def test_a_certificate_that_cannot_be_read_does_not_restart_k3s(tmp_path: Path) -> None:
    file = tmp_path / "k3s.yaml"
    file.write_text("users: []\n")
    done = run("kubeconfig", f"KUBECONFIG_FILE={file}; renew() {{ echo restarted; }}; begin() {{ :; }}; main")
    assert json.loads(done.stdout) == {"kubeconfig": "users: []"}
    assert "its expiry is unknown" in done.stderr


def test_k3s_is_not_restarted_while_another_step_runs_on_the_server(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "k3s.yaml", 20)
    call = (
        f"KUBECONFIG_FILE={file} LOCK_FILE={tmp_path}/lock LOCK_DEADLINE=0; begin() {{ :; }}; "
        "systemctl() { echo restarted; }; exec 7>$LOCK_FILE; flock 7; main"
    )
    done = run("kubeconfig", call)
    assert (done.returncode, done.stdout) == (1, "")
    assert "another busbar step is still running on this host" in done.stderr


def test_certificates_that_the_step_before_has_renewed_are_not_renewed_again(tmp_path: Path) -> None:
    file, renewed = kubeconfig(tmp_path, "k3s.yaml", 20), kubeconfig(tmp_path, "renewed", 365)
    call = (
        f"KUBECONFIG_FILE={file}; begin() {{ :; }}; acquire_lock() {{ cp {renewed} {file}; }}; "
        "systemctl() { echo restarted; }; main"
    )
    done = run("kubeconfig", call)
    assert json.loads(done.stdout)["kubeconfig"] == renewed.read_text().strip()
