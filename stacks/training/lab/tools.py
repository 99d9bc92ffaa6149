"""The programs that training needs, each with the module that pins its version (go/<tool>/go.mod)."""

from __future__ import annotations

from pathlib import Path

from lab.build.go import Tool

MODULES = Path(__file__).resolve().parent / "go"

# Kubeflow Trainer and its JobSet. One go.mod for both, so that they share the packages of Kubernetes.
TRAINER_TOOLS = (
    Tool(
        "trainer-controller-manager",
        "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
        MODULES / "trainer",
    ),
    Tool("jobset", "sigs.k8s.io/jobset", MODULES / "trainer"),
)
# Not with Trainer: the two ask for other versions of Kubernetes.
TRAINING_OPERATOR_TOOL = Tool(
    "training-operator",
    "github.com/kubeflow/training-operator/cmd/training-operator.v1",
    MODULES / "training-operator",
)
TRAINER_MODULES = ("github.com/kubeflow/trainer/v2", "sigs.k8s.io/jobset")
# For a stack that configures networks: Multus, whereabouts, and the plugins that K3s lacks.
_MULTUS, _WHEREABOUTS, _PLUGINS = (
    "gopkg.in/k8snetworkplumbingwg/multus-cni.v4",
    "github.com/k8snetworkplumbingwg/whereabouts",
    "github.com/containernetworking/plugins",
)
CNI_PLUGINS = ("macvlan", "host-device")
MULTUS_TOOLS = (
    Tool("multus", f"{_MULTUS}/cmd/multus", MODULES / "multus"),
    Tool("thin_entrypoint", f"{_MULTUS}/cmd/thin_entrypoint", MODULES / "multus"),
    Tool("whereabouts", f"{_WHEREABOUTS}/cmd", MODULES / "multus"),
    Tool("install-whereabouts", "./install-whereabouts", MODULES / "multus"),
    *(Tool(name, f"{_PLUGINS}/plugins/main/{name}", MODULES / "multus") for name in CNI_PLUGINS),
)
MULTUS_MODULES = (_MULTUS, _WHEREABOUTS)
# Built before the first drill.
ALL = (*TRAINER_TOOLS, TRAINING_OPERATOR_TOOL, *MULTUS_TOOLS)
