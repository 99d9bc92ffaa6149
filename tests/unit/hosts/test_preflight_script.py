"""What the preflight script reads from the kernel's files, on copies of them."""

from __future__ import annotations

import base64
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.preflight.hardware_checks import check_hardware
from busbar.preflight.health_checks import check_health
from busbar.preflight.report import FirstValues, Report
from tests.support import h200
from tests.support.reports import report
from tests.unit.hosts.bash import Box, output, run
from tests.unit.preflight.samples import REQUIRED


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


ROWS = yaml.safe_load(Path(__file__).with_name("preflight_script.yaml").read_text())


def laid_out(root: Path, row: dict[str, Any]) -> str:
    """Lay out the files, links and programs of a row; the bash that puts its programs on PATH."""
    texts = {**row.get("files", {}), **({"text": row["text"]} if "text" in row else {})}
    for name, text in texts.items():
        if name.endswith("/"):
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            write(root / name, text)
    for name, target in row.get("links", {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(root / target)
    return "".join(printing(root, name, text) for name, text in row.get("programs", {}).items())


def read(text: str, kind: type) -> Any:
    """What a part of the script prints: a text, or JSON whose outer brackets another function prints."""
    if kind is str:
        return text.rstrip("\n")
    first, last = "[]" if kind is list else "{}"
    return json.loads(text if text.startswith(first) else f"{first}{text.removeprefix(',')}{last}")


def same_keys(found: Any, expected: Any) -> Any:
    """What is found, of objects only the keys that are expected."""
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [same_keys(*each) for each in zip(found, expected, strict=True)]
    if isinstance(found, dict) and isinstance(expected, dict):
        return {key: found.get(key) for key in expected}
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["case"])
def test_a_part_of_the_script_reports_what_the_host_shows(tmp_path: Path, row: dict[str, Any]) -> None:
    programs, expected = laid_out(tmp_path, row), row["found"]
    text = output("preflight", programs + row["run"], ROOT=str(tmp_path), **row.get("values", {}))
    if isinstance(expected, str):
        expected = expected.replace("$ROOT", str(tmp_path))
    found = read(text, type(expected))
    assert same_keys(found, expected) == expected, found


def test_a_server_reports_what_its_cluster_was_made_with(box: Box) -> None:
    api = """
    systemctl() { :; }
    api() {
      [[ -z ${AWAY:-} ]] || return 1
      case $* in
        *"get nodes"*)
          echo "server-1|10.42.0.0/24|10.0.0.11"
          echo "worker-1|10.42.1.0/24|"
          echo "worker-2||" ;;
        *"get servicecidr kubernetes"*) echo 10.43.0.0/16 ;;
        *"get service kube-dns"*) echo 10.43.0.10 ;;
      esac
    }
    first_values"""
    unknown = FirstValues(note={}, pod_networks=(), etcd_addresses={}, service_cidr="", cluster_dns="")
    assert FirstValues.model_validate_json(box.output("preflight", api, AWAY="yes")) == unknown
    box.write("state/first-values", '{"k3s.cluster_cidr": "10.42.0.0/16"}\n')
    assert FirstValues.model_validate_json(box.output("preflight", api)) == FirstValues(
        note={"k3s.cluster_cidr": "10.42.0.0/16"},
        pod_networks=("10.42.0.0/24", "10.42.1.0/24"),
        etcd_addresses={"server-1": "10.0.0.11"},
        service_cidr="10.43.0.0/16",
        cluster_dns="10.43.0.10",
    )


def test_the_whole_report_of_a_host_without_ipv6_can_be_read(tmp_path: Path) -> None:
    prelude = (
        "begin() { set -euo pipefail; set -E; trap 'exit 9' ERR; }; "
        'ip() { [[ $1 != -6 ]] || return 2; command ip "$@"; }; '
    )
    host = {"ROLE": "worker", "NODE_ADDRESS": "127.0.0.1", "VERB": "install", "PAYLOAD": "{}"}
    done = run("preflight", prelude + "main", **host)
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(done.stdout)
    assert report.has_node_address is False, "the loopback interface is not a network"
    assert report.disks[0].free_bytes > 0
    assert report.health and report.health.uptime_seconds > 0


def test_a_host_without_iproute2_and_systemd_has_a_whole_report(tmp_path: Path) -> None:
    # Seen on a microVM with an H200 and Ubuntu 24.04, whose image has neither.
    absent = {"ip", "ss", "systemctl", "journalctl"}
    for folder in ("/usr/sbin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if program.name not in absent and not (tmp_path / program.name).is_symlink():
                (tmp_path / program.name).symlink_to(program)
    prelude = (
        f"begin() {{ set -euo pipefail; PATH={tmp_path}; trap 'on_error $? $LINENO x' ERR; set -E; }}; main"
    )
    for role in ("worker", "server"):
        host = {"ROLE": role, "NODE_ADDRESS": "192.0.2.7", "VERB": "install", "PAYLOAD": "{}"}
        done = run("preflight", prelude, **host)
        assert (done.returncode, done.stderr) == (0, "")
        report = Report.model_validate_json(done.stdout)
        assert absent <= {*report.missing_tools}
        assert (report.addresses, report.interfaces, report.listening, report.active_units) == ((),) * 4


@pytest.mark.parametrize("role", ["worker", "nfs"])
def test_the_owner_mark_of_the_host_or_the_nfs_server_is_reported(tmp_path: Path, role: str) -> None:
    write(tmp_path / f"{role}/owner", "role=x\nowner=busbar/prod/worker-1\ninstall_id=0123\n")
    places = f"STATE_DIR={tmp_path}/worker; NFS_STATE_DIR={tmp_path}/nfs; "
    found = json.loads("{" + output("preflight", places + "software", ROLE=role) + "}")
    assert found["owner"] == {"owner": "busbar/prod/worker-1", "install_id": "0123"}


def test_a_proxy_answers_where_its_port_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = f"127.0.0.1/{listener.getsockname()[1]}"
        assert output("preflight", f"truth is_open 10 {proxy}") == "true"
    assert output("preflight", f"truth is_open 10 {proxy}") == "false"


@pytest.mark.parametrize(
    ("url", "address", "asked"),
    [
        ("http://10.0.0.9:3128", "10.0.0.9:3128", "10.0.0.9/3128"),
        ("http://anna:secret@proxy.example:8080/", "proxy.example:8080", "proxy.example/8080"),
        ("http://proxy.example", "proxy.example:1080", "proxy.example/1080"),
        ("http://[fd00::9]:3128", "[fd00::9]:3128", "fd00::9/3128"),
    ],
)
def test_the_proxy_of_a_login_is_reported_with_its_file_and_without_its_password(
    url: str, address: str, asked: str, tmp_path: Path
) -> None:
    (tmp_path / "environment").write_text(f'PATH="/bin"\nhttps_proxy="{url}"\n')
    given = f"LOGIN_FILES=({tmp_path}/none {tmp_path}/environment); "
    given += f'is_open() {{ [[ $2 == "{asked}" ]]; }}; login_proxy'
    found = json.loads("{" + output("preflight", given, https_proxy=url).removeprefix(",") + "}")
    assert found["login_proxy"] == {"address": address, "file": f"{tmp_path}/environment", "answers": True}
    assert output("preflight", given) == ""


def test_a_full_tmp_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    full = "head() { return 1; }; "
    assert run("preflight", f"TMP={tmp_path}; {full} tmp_is_writable").returncode == 1
    assert run("preflight", f"TMP={tmp_path}; tmp_is_writable").returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert run("preflight", f"TMP={tmp_path}/none; tmp_is_writable").returncode == 1


WHOLE = """
begin() { PAYLOAD=${PAYLOAD:-'{}'}; }
keep_script() { echo kept >&2; }
for part in system resources network software; do eval "$part() { printf '\\"$part\\":1'; }"; done
for part in gpus fabric_manager gdr hcas health nfs_client nfs_folder; do
  eval "$part() { printf 2; }"
done
main
"""


ALWAYS = {"schema_version", "system", "resources", "network", "software", "tmp_is_writable", "epoch"}
WORKERS = {"gpus", "fabric_manager", "gdr", "hcas", "rdma_is_shared", "health", "nfs_client"}
WORKERS |= {"fabric", "pci_settings", "redirecting", "translated", "virtual_machine"}


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"ROLE": "worker"}, WORKERS),
        ({"ROLE": "server"}, set()),
        ({"ROLE": "lb", "NFS_FOLDER": "/srv"}, {"nfs_folder"}),
        ({"ROLE": "lb", "NFS_SERVER": "10.0.0.9"}, {"nfs_client"}),
    ],
)
@pytest.mark.parametrize("writable", [True, False])
def test_the_report_has_what_the_role_of_the_host_needs(
    values: dict[str, str], more: set[str], writable: bool
) -> None:
    room = f"tmp_is_writable() {{ {str(writable).lower()}; }}; "
    done = run("preflight", room + WHOLE, **values)
    found = json.loads(done.stdout)
    assert {*found} == {*ALWAYS, *more}
    assert (found["tmp_is_writable"], done.stderr) == (writable, "kept\n" if writable else "")
    assert found["schema_version"] == 5 and found["epoch"] > 0


# Recorded: the driver's lines as the kernel logs them, between others.
KERNEL = """\
mlx5_core 0000:1b:00.0: Port module event: module 0, Cable plugged
NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: GPU 0000:1b:00.0: GPU serial number is 1650922000000.
NVRM: Xid (PCI:0000:43:00): 31, pid=41, name=python, Ch 00000008, intr 00000000. MMU Fault
"""


def printing(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "text").write_text(text)
    (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ncat {tmp_path}/text\n")
    (tmp_path / "bin" / name).chmod(0o755)
    return f"PATH={tmp_path}/bin:$PATH; "


def test_the_driver_s_lines_in_the_log_of_the_kernel_are_reported(tmp_path: Path) -> None:
    found = json.loads(output("preflight", printing(tmp_path, "journalctl", KERNEL) + "xids"))
    assert found == [line for line in KERNEL.splitlines() if "Xid" in line]
    strict = 'trap \'on_error "$?" "$LINENO" "$BASH_COMMAND"\' ERR; set -E; '
    done = run("preflight", printing(tmp_path, "journalctl", "usb 1-1: new device\n") + strict + "xids")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]", ""), "a log without them is no error"
    assert output("preflight", "journalctl() { :; }; timeout() { return 1; }; xids") == "null"


def test_a_program_that_fills_the_log_with_its_xids_hides_none_of_the_hardware(tmp_path: Path) -> None:
    first, other = (line for line in KERNEL.splitlines() if "Xid" in line)
    last = other.replace("pid=41", "pid=42")
    log = "\n".join([first, *[other] * 3000, last]) + "\n"
    assert json.loads(output("preflight", printing(tmp_path, "journalctl", log) + "xids")) == [first, last]
    few = printing(tmp_path, "journalctl", log) + "XID_LINES=1; xids"
    assert json.loads(output("preflight", few)) == [last]


def test_the_time_of_a_report_needs_no_gnu_date(tmp_path: Path) -> None:
    # date of uutils 0.0.30, which Ubuntu 26.04 has a later release of: "invalid format %s.%3N".
    host = {"ROLE": "lb", "NODE_ADDRESS": "127.0.0.1", "PAYLOAD": "{}"}
    done = run("preflight", "begin() { :; }; date() { return 1; }; main", **host)
    assert abs(Report.model_validate_json(done.stdout).epoch - time.time()) < 60


LINK = {"width": "16", "speed": "32.0 GT/s PCIe"}


def test_a_real_h200_in_a_vm_is_read_as_it_is_and_only_its_missing_hca_is_a_fault(tmp_path: Path) -> None:
    links = {f"{limit}_link_{what}": text for limit in ("current", "max") for what, text in LINK.items()}
    for name, text in {"vendor": "0x10de", "class": "0x030200", **links}.items():
        write(tmp_path / "pci/0000:00:06.0" / name, f"{text}\n")
    given = f"PCI={tmp_path}/pci; INFINIBAND={tmp_path}/none; " + h200.install(tmp_path / "bin")
    (tmp_path / "bin/journalctl").symlink_to("/bin/true")
    parts = '"gpus":%s,"health":%s,"fabric":[%s]'
    text = output(
        "preflight", f'{given} printf \'{{{parts}}}\' "$(gpus)" "$(health)" "$(fabric | json_list)"'
    )
    found = json.loads(text)
    assert found["gpus"]["list"] == [
        {"model": "NVIDIA H200", "driver": "580.159.04", "persistence_mode": True, "mig": False}
    ]
    assert found["health"]["ecc"] == "00000000:00:06.0, 0"
    assert found["health"]["remapped_rows"] == "00000000:00:06.0, No, No"
    assert (found["health"]["nvlink"], found["fabric"]) == ("", ["N/A, N/A"])
    host = report(
        **found,
        kernel="6.18.44-fc-v657-gpu",
        gdr={"peermem": False, "open_modules": True},
        fabric_manager={"version": "", "active": False, "nvswitches": 0},
        hcas=[],
    )
    one = REQUIRED.model_copy(update={"gpus": 1, "gpu_model": "H200", "transport": "gpudirect-rdma"})
    checks = [*check_hardware(one, host), *check_health(one, host)]
    assert [each.what for each in checks] == ["no HCA in /sys/class/infiniband"]


def test_the_report_has_what_the_script_of_a_capability_prints() -> None:
    script = 'printf \'{"answer":%s}\' "$(json "$ROLE")"'
    payload = f'{{"also":"{base64.b64encode(script.encode()).decode()}"}}'
    found = json.loads(output("preflight", WHOLE, ROLE="lb", PAYLOAD=payload))
    assert found["also"] == {"answer": "lb"}
