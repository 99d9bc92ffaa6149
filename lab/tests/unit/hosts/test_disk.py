"""What a host's disk holds before its first boot."""

import tomllib
from pathlib import Path

import pytest

from lab.hosts import cgroups, disk


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with cgroup v1 and without CAP_SYS_RESOURCE."""
    monkeypatch.setattr(cgroups, "is_v1", lambda: True)
    monkeypatch.setattr(disk, "may_lower_oom_score", lambda: False)
    return monkeypatch


def test_on_cgroup_v2_the_kubelets_own_choice_of_cgroups_stands() -> None:
    assert not {"failCgroupV1", "cgroupDriver", "cgroupRoot"} & disk.kubelet_settings(v1=False).keys()


def test_containerd_is_told_not_to_lower_oom_scores_only_where_it_cannot(
    tmp_path: Path, machine: pytest.MonkeyPatch
) -> None:
    drop_in = "k3s/agent/etc/containerd/config-v3.toml.d/99-lab.toml"
    disk.kubernetes_prerequisites(tmp_path / "without")
    machine.setattr(disk, "may_lower_oom_score", lambda: True)
    disk.kubernetes_prerequisites(tmp_path / "with")
    settings = tomllib.loads((tmp_path / "without" / drop_in).read_text())
    assert settings["plugins"]["io.containerd.cri.v1.runtime"] == {"restrict_oom_score_adj": True}
    assert not (tmp_path / "with" / drop_in).exists()


@pytest.mark.parametrize(("version", "says"), [("v1.34.3+k3s1", True), ("v1.35.6+k3s1", False)])
def test_an_earlier_k3s_is_told_to_import_the_drop_ins_of_containerd(
    tmp_path: Path, machine: pytest.MonkeyPatch, version: str, says: bool
) -> None:
    machine.setattr(disk, "k3s_version", lambda: version)
    disk.kubernetes_prerequisites(tmp_path)
    template = (tmp_path / "k3s/agent/etc/containerd/config-v3.toml.tmpl").read_text()
    assert template.startswith("imports = ") is says
    assert template.endswith('{{ template "base" . }}\n')


@pytest.mark.parametrize(
    ("machines", "hosts"),
    [
        ("search lan\nnameserver 192.0.2.1\n", "nameserver 192.0.2.1\n"),
        ("nameserver 127.0.0.53\noptions edns0\n", "nameserver 1.1.1.1\nnameserver 8.8.8.8\n"),
    ],
)
def test_hosts_never_get_a_resolver_that_only_this_machine_can_reach(machines: str, hosts: str) -> None:
    assert disk.resolvers(machines) == hosts
