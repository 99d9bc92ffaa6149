"""When the kubeconfig is read again, and K3s restarted, before the certificates end after 365 days."""

import base64
import itertools
import json
import subprocess
from datetime import date, timedelta

import pytest

from busbar.hosts import k3s
from busbar.hosts.scripts import script_result
from tests.support.bash import Box

FILE, RENEWED = "etc/k3s.yaml", "renewed.yaml"
# A host that prints a line before the script runs. Its K3s renews the certificates when it restarts.
HOST = """
begin() { echo "Welcome to node {gpu-1}!"; }
keep_quorum() { touch $ROOT/others-are-enough; }
systemctl() {
  [[ -e $ROOT/others-are-enough && $* == "--no-block restart k3s" ]] && cp $ROOT/renewed.yaml $KUBECONFIG_FILE
}
server_answers() { [[ $1 == 127.0.0.1 ]]; }
"""


def kubeconfig(box: Box, path: str, days: int) -> None:
    """A kubeconfig whose client certificate is valid for `days`."""
    certificate = box.write(f"{path}.crt")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", "/dev/null", "-out", certificate, "-days", str(days), "-subj", "/CN=admin"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    data = base64.b64encode(certificate.read_bytes()).decode()
    box.write(path, f"users:\n- name: default\n  user:\n    client-certificate-data: {data}\n")


@pytest.fixture
def old(box: Box) -> Box:
    """A server whose certificates end soon."""
    kubeconfig(box, FILE, 20)
    kubeconfig(box, RENEWED, 365)
    return box


@pytest.mark.parametrize(("days", "ends_soon"), [(365, "false"), (115, "false"), (100, "true"), (1, "true")])
def test_a_kubeconfig_is_good_enough_with_110_days_left(box: Box, days: int, ends_soon: str) -> None:
    kubeconfig(box, FILE, days)
    assert box.output("kubeconfig", "truth ends_soon") == ends_soon


def test_near_the_end_k3s_is_restarted_and_the_renewed_kubeconfig_is_read(old: Box) -> None:
    found = script_result(old.output("kubeconfig", HOST + "main"))
    assert found == {"kubeconfig": old.read(RENEWED).rstrip()}


def test_certificates_that_the_step_before_has_renewed_are_not_renewed_again(old: Box) -> None:
    waited = "acquire_lock() { cp $ROOT/renewed.yaml $KUBECONFIG_FILE; }; systemctl() { exit 99; }; main"
    found = script_result(old.output("kubeconfig", HOST + waited))
    assert found == {"kubeconfig": old.read(RENEWED).rstrip()}


def test_k3s_is_not_restarted_while_another_step_runs_on_the_server(old: Box) -> None:
    held = "begin() { :; }; systemctl() { echo begun; }; LOCK_DEADLINE=0; exec 7>$LOCK_FILE; flock 7; main"
    assert "another busbar step is still running on this host" in old.error("kubeconfig", held)


def test_a_kubeconfig_that_is_not_renewed_is_an_error(old: Box) -> None:
    said = old.error("kubeconfig", "RENEWAL_DEADLINE=0; keep_quorum() { :; }; systemctl() { :; }; renew")
    assert "K3s did not renew its certificates" in said


def test_a_certificate_that_cannot_be_read_does_not_restart_k3s(box: Box) -> None:
    box.write(FILE, "users: []\n")
    done = box.run("kubeconfig", "begin() { :; }; renew() { echo restarted; }; main")
    assert json.loads(done.stdout) == {"kubeconfig": "users: []"}
    assert "its expiry is unknown" in done.stderr


def test_the_trigger_changes_every_90_days_and_not_in_between() -> None:
    start = date(2026, 1, 1)
    numbers = [k3s.kubeconfig_renewal(start + timedelta(days=day)) for day in range(365)]
    changes = [day for day in range(1, 365) if numbers[day] != numbers[day - 1]]
    assert {later - earlier for earlier, later in itertools.pairwise(changes)} == {90}
