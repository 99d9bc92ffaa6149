"""What the preflight script reads from the kernel's files, on copies of them."""

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
from tests.support.bash import Box, output, run
from tests.support.reports import report
from tests.unit.preflight.samples import REQUIRED

ROWS = yaml.safe_load(Path(__file__).with_name("preflight_script.yaml").read_text())


def laid_out(box: Box, row: dict[str, Any]) -> str:
    """Lay out the files, links and programs of a row; the bash that puts its programs on PATH."""
    texts = {**row.get("files", {}), **({"text": row["text"]} if "text" in row else {})}
    for name, text in texts.items():
        if name.endswith("/"):
            (box.root / name).mkdir(parents=True, exist_ok=True)
        else:
            box.write(name, text)
    for name, target in row.get("links", {}).items():
        (box.root / name).parent.mkdir(parents=True, exist_ok=True)
        (box.root / name).symlink_to(box.root / target)
    return "".join(printing(box, name, text) for name, text in row.get("programs", {}).items())


def printing(box: Box, name: str, text: str) -> str:
    """The bash that puts a program with this name on PATH, which prints the text."""
    box.program(f"bin/{name}", f"cat {box.write('text', text)}")
    return f"PATH={box.root}/bin:$PATH; "


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
def test_a_part_of_the_script_reports_what_the_host_shows(box: Box, row: dict[str, Any]) -> None:
    programs, expected = laid_out(box, row), row["found"]
    text = output("preflight", programs + row["run"], ROOT=str(box.root), **row.get("values", {}))
    if isinstance(expected, str):
        expected = expected.replace("$ROOT", str(box.root))
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


def reported(prelude: str, *, quiet: bool = False, **values: str) -> Report:
    """The report of the whole script; `quiet`: it must print nothing else."""
    given = {"ROLE": "worker", "NODE_ADDRESS": "127.0.0.1", "VERB": "install", "PAYLOAD": "{}", **values}
    done = run("preflight", f"{prelude}; main", **given)
    assert done.returncode == 0 and not (quiet and done.stderr), done.stderr
    return Report.model_validate_json(done.stdout)


STRICT = "set -euo pipefail; trap 'on_error $? $LINENO x' ERR; set -E"


def test_the_whole_report_of_a_host_without_ipv6_can_be_read() -> None:
    found = reported(f'begin() {{ {STRICT}; }}; ip() {{ [[ $1 != -6 ]] || return 2; command ip "$@"; }}')
    assert found.has_node_address is False, "the loopback interface is not a network"
    assert found.disks[0].free_bytes > 0
    assert found.health and found.health.uptime_seconds > 0


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_host_without_iproute2_and_systemd_has_a_whole_report(tmp_path: Path, role: str) -> None:
    # Seen on a microVM with an H200 and Ubuntu 24.04, whose image has neither.
    absent = {"ip", "ss", "systemctl", "journalctl"}
    for folder in ("/usr/sbin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if program.name not in absent and not (tmp_path / program.name).is_symlink():
                (tmp_path / program.name).symlink_to(program)
    found = reported(
        f"begin() {{ PATH={tmp_path}; {STRICT}; }}", quiet=True, ROLE=role, NODE_ADDRESS="192.0.2.7"
    )
    assert absent <= {*found.missing_tools}
    assert (found.addresses, found.interfaces, found.listening, found.active_units) == ((),) * 4


def test_the_time_of_a_report_needs_no_gnu_date() -> None:
    # date of uutils 0.0.30, which Ubuntu 26.04 has a later release of: "invalid format %s.%3N".
    found = reported("begin() { :; }; date() { return 1; }", ROLE="lb")
    assert abs(found.epoch - time.time()) < 60


@pytest.mark.parametrize("role", ["worker", "nfs"])
def test_the_owner_mark_of_the_host_or_the_nfs_server_is_reported(box: Box, role: str) -> None:
    box.write(f"{role}/owner", "role=x\nowner=busbar/prod/worker-1\ninstall_id=0123\n")
    places = f"STATE_DIR={box.root}/worker; NFS_STATE_DIR={box.root}/nfs; "
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
def test_the_proxy_of_a_login_is_reported_without_its_password(
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
def test_a_report_has_what_the_role_needs(values: dict[str, str], more: set[str], writable: bool) -> None:
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


def test_the_driver_s_lines_in_the_log_of_the_kernel_are_reported(box: Box) -> None:
    found = json.loads(output("preflight", printing(box, "journalctl", KERNEL) + "xids"))
    assert found == [line for line in KERNEL.splitlines() if "Xid" in line]
    done = run("preflight", f"{printing(box, 'journalctl', 'usb 1-1: new device')} {STRICT}; xids")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]", ""), "a log without them is no error"
    assert output("preflight", "journalctl() { :; }; timeout() { return 1; }; xids") == "null"


def test_a_program_that_fills_the_log_with_its_xids_hides_none_of_the_hardware(box: Box) -> None:
    first, other = (line for line in KERNEL.splitlines() if "Xid" in line)
    last = other.replace("pid=41", "pid=42")
    log = printing(box, "journalctl", "\n".join([first, *[other] * 3000, last, ""]))
    assert json.loads(output("preflight", log + "xids")) == [first, last]
    assert json.loads(output("preflight", f"{log} XID_LINES=1; xids")) == [last]


def test_a_real_h200_in_a_vm_is_read_as_it_is_and_only_its_missing_hca_is_a_fault(box: Box) -> None:
    link = {"width": "16", "speed": "32.0 GT/s PCIe"}
    links = {f"{limit}_link_{what}": text for limit in ("current", "max") for what, text in link.items()}
    for name, text in {"vendor": "0x10de", "class": "0x030200", **links}.items():
        box.write(f"pci/0000:00:06.0/{name}", f"{text}\n")
    given = f"PCI={box.root}/pci; INFINIBAND={box.root}/none; " + h200.install(box.root / "bin")
    (box.root / "bin/journalctl").symlink_to("/bin/true")
    parts = 'printf \'"gpus":%s,"health":%s,"fabric":[%s]\' "$(gpus)" "$(health)" "$(fabric | json_list)"'
    found = json.loads("{" + output("preflight", f"{given} {parts}") + "}")
    [gpu] = found["gpus"]["list"]
    assert gpu == {"model": "NVIDIA H200", "driver": "580.159.04", "persistence_mode": True, "mig": False}
    health = [found["health"][name] for name in ("ecc", "remapped_rows", "nvlink")]
    assert health == ["00000000:00:06.0, 0", "00000000:00:06.0, No, No", ""]
    gdr = {"peermem": False, "open_modules": True}
    manager = {"version": "", "active": False, "nvswitches": 0}
    host = report(**found, kernel="6.18.44-fc-v657-gpu", gdr=gdr, fabric_manager=manager, hcas=[])
    one = REQUIRED.model_copy(update={"gpus": 1, "gpu_model": "H200", "transport": "gpudirect-rdma"})
    checks = [*check_hardware(one, host), *check_health(one, host)]
    assert [each.what for each in checks] == ["no HCA in /sys/class/infiniband"]


def test_the_report_has_what_the_script_of_a_capability_prints() -> None:
    script = 'printf \'{"answer":%s}\' "$(json "$ROLE")"'
    payload = f'{{"also":"{base64.b64encode(script.encode()).decode()}"}}'
    found = json.loads(output("preflight", WHOLE, ROLE="lb", PAYLOAD=payload))
    assert found["also"] == {"answer": "lb"}
