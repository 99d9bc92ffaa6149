"""The small types at their limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from busbar.config import ConfigError, load, stackfile
from tests.support.clusters import site


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("1", 1), ("1B", 1), ("1K", 2**10), ("1M", 2**20), ("1G", 2**30), ("1T", 2**40), ("3tib", 3 * 2**40)],
)
def test_every_unit_of_a_size_is_a_power_of_two(written: str, size_bytes: int) -> None:
    cluster = load(site(validation={"min_bytes": 1, "max_bytes": written}))
    assert cluster.validation.max_bytes == size_bytes


def test_a_secret_that_is_an_object_but_not_an_encrypted_one_is_plain_text(tmp_path: Path) -> None:
    config = {"busbar:cluster": {}, "busbar:s3SecretKey": {"value": "hunter2"}}
    path = tmp_path / "Pulumi.prod.yaml"
    path.write_text(yaml.safe_dump({"config": config}))
    with pytest.raises(ConfigError) as caught:
        stackfile.read(path)
    assert str(caught.value).startswith("busbar:s3SecretKey: ")


LONG = ".".join(letter * 60 for letter in "abcd")


@pytest.mark.parametrize("name", ["gpu.example.com", f"{LONG}.{'e' * 9}"])
def test_a_host_name_of_up_to_253_characters_is_an_address(name: str) -> None:
    cluster = site()
    cluster["hosts"]["workers"][0]["address"] = name
    assert load(cluster).hosts.workers[0].address == name


@pytest.mark.parametrize("name", [f"{LONG}.{'e' * 10}", f"{'a' * 64}.example", "gpu.1", "gpu_1!"])
def test_a_longer_name_or_one_that_is_not_a_host_name_is_not_an_address(name: str) -> None:
    cluster = site()
    cluster["hosts"]["workers"][0]["address"] = name
    with pytest.raises(ConfigError, match="is not an IPv4/IPv6 address or a host name"):
        load(cluster)


@pytest.mark.parametrize("key", ["-example.com/rail", f"{'a' * 254}/rail", "example..com/rail", "/rail"])
def test_a_label_key_with_a_prefix_that_is_not_a_domain_is_refused(key: str) -> None:
    cluster = site()
    next(iter(cluster["pools"].values()))["labels"] = {key: "1"}
    with pytest.raises(ConfigError, match="is not a Kubernetes label key"):
        load(cluster)


@pytest.mark.parametrize(
    ("written", "workers", "at_once"),
    [("10%", 1, 1), ("10%", 44, 5), ("100%", 44, 44), (4, 44, 4), ("50", 44, 50), ("1%", 440, 5)],
)
def test_the_agents_that_restart_at_the_same_time_are_a_number_or_a_percentage_rounded_up(
    written: str | int, workers: int, at_once: int
) -> None:
    cluster = site()
    name, pool = next(iter(cluster["pools"].items()))
    pool["max_unavailable"] = written
    assert load(cluster).pools[name].restarts_at_once(workers) == at_once


@pytest.mark.parametrize(
    ("limit", "workers", "at_once"),
    [(None, 4, 1), (None, 19, 1), (None, 20, 2), ("50%", 3, 1), (3, 4, 3), ("100%", 7, 7)],
)
def test_a_diagnosis_may_put_a_part_of_a_pool_in_quarantine_and_always_one(
    limit: str | int | None, workers: int, at_once: int
) -> None:
    cluster = site()
    [name] = cluster["pools"]
    cluster["pools"][name] |= {} if limit is None else {"quarantine_limit": limit}
    assert load(cluster).pools[name].quarantined_at_once(workers) == at_once


@pytest.mark.parametrize(
    ("max_unavailable", "written", "seconds"),
    [(1, None, 0), (2, None, 60), ("10%", None, 60), (2, 0, 0), (1, 30, 30)],
)
def test_workers_that_restart_side_by_side_have_to_stay_ready_before_the_next_ones(
    max_unavailable: int | str, written: int | None, seconds: int
) -> None:
    cluster = site()
    name, pool = next(iter(cluster["pools"].items()))
    pool["max_unavailable"] = max_unavailable
    if written is not None:
        pool["pause_seconds"] = written
    assert load(cluster).pools[name].pause_after_restart(44) == seconds


@pytest.mark.parametrize("written", [0, "0%", "101%", "all", "10 %", "-1", 1.5, True, ""])
def test_a_pool_whose_agents_could_never_restart_is_refused(written: str | float) -> None:
    cluster = site()
    next(iter(cluster["pools"].values()))["max_unavailable"] = written
    with pytest.raises(ConfigError, match=r"pools\.\w+\.max_unavailable: "):
        load(cluster)
