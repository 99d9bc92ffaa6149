"""Our values and objects against what NVIDIA and Kubeflow publish for the pinned versions.

The NVIDIA charts have no values schema: a misspelt key installs, and does nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from busbar.manifests import mpijob, operators
from busbar.manifests.nccljob import NcclJob, TopologyFile, resolve
from busbar.manifests.scheduling import taints_of
from tests.support import shared
from tests.support.kube_site import cluster, job
from tests.unit.charts import extract
from tests.unit.charts.published import (
    EVERY_VERSION,
    MPI_OPERATOR_RELEASE,
    PROJECT,
    complaints,
    published_crd,
    published_values,
)

HELM_VALUES = PROJECT / "helm_values"
# Keys of the chart of Node Feature Discovery, which the GPU Operator's brings
# (kubernetes-sigs/node-feature-discovery, deployment/helm/node-feature-discovery/values.yaml).
OF_DISCOVERY = {f"node-feature-discovery.{part}.tolerations" for part in ("master", "gc")}
TAINTED = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}


def unknown_keys(ours: Mapping[str, Any], theirs: Any, path: str = "") -> Iterator[str]:
    """Paths of ours that the chart's values do not have; an empty mapping there may hold anything."""
    for key, value in ours.items():
        here = f"{path}.{key}" if path else key
        if not isinstance(theirs, Mapping) or key not in theirs:
            yield here
        elif isinstance(value, Mapping) and theirs[key] != {}:
            yield from unknown_keys(value, theirs[key], here)


def rendered(chart: str) -> dict[str, Any]:
    site = cluster(TAINTED)
    if chart == "gpu-operator":
        return operators.GPU_OPERATOR.values(HELM_VALUES, site.gpu_operator, taints_of(site.pools.values()))
    return operators.NETWORK_OPERATOR.values(HELM_VALUES, site.network_operator)


@pytest.mark.parametrize(("chart", "version"), EVERY_VERSION)
def test_every_key_we_set_is_one_that_the_chart_reads(chart: str, version: str) -> None:
    assert set(unknown_keys(rendered(chart), published_values(chart, version))) <= OF_DISCOVERY


SELECTORS = {"pfNames": ["ib0"], "linkTypes": []}
MIRROR = {"image_repository": "registry.example:5000/mellanox", "resource": "rdma/ib", "selectors": SELECTORS}
POLICIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "tainted workers": (TAINTED, {}),
    "RoCE": ({"link_layer": "ethernet"}, {}),
    "mirror and own selectors": ({}, MIRROR),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("version", [version for chart, version in EVERY_VERSION if chart != "gpu-operator"])
def test_the_nic_cluster_policy_fits_the_published_crd(version: str, name: str) -> None:
    pool, network_operator = POLICIES[name]
    site = cluster(pool, network_operator=network_operator)
    manifest = operators.render_policy(
        site.network_operator, taints_of(site.pools.values()), ["0000:1b:00.0"]
    )
    crd = published_crd("network-operator", version, "NicClusterPolicy")
    assert complaints(crd, "v1alpha1", manifest) == []


def jobs() -> dict[str, NcclJob]:
    nodes = ["worker-1", "worker-2"]
    return {
        "defaults": job(),
        "sockets": job(validation={"transport": "socket", "runtime_class": "", "shm_size": "256Mi"}),
        "reference system": job(validation={"profile": "h100-crusoe"}),
        "device of the host": job({"gpu_model": "A100"}, validation={"profile": "a100-ib-8x200-gdrcopy"}),
        "SHARP": job(validation={"profile": "h100-sharp", "collectives": ["all_reduce", "all_gather"]}),
        "tainted": job(TAINTED),
        "topology file": resolve(
            cluster(), "h100", nodes, topology=TopologyFile("h100", "t.xml", "<system/>")
        ),
    }


@pytest.mark.parametrize("name", jobs())
def test_the_mpijob_fits_the_published_crd_pods_and_all(name: str) -> None:
    manifest = mpijob.render(jobs()[name])
    crd = published_crd(*MPI_OPERATOR_RELEASE, "MPIJob")
    assert complaints(crd, "v2beta1", manifest) == []


@pytest.mark.parametrize(
    ("chart", "version"),
    [each if extract.charts()[each[0]].module else shared.param(*each) for each in extract.every()],
)
def test_the_extract_is_that_of_the_published_chart(chart: str, version: str) -> None:
    folder = extract.published(chart, version, shared.CHARTS)
    if (module := extract.charts()[chart].module) and not folder.is_dir():
        pytest.skip(f"{folder} is missing. Fix: go mod download {module}@{version}")
    wanted = extract.text(chart, version, folder)
    assert extract.path(chart, version).read_text() == wanted, "Fix: python -m tests.unit.charts.extract"
