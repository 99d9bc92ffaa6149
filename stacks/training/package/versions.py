"""Default versions of the software that stacks/training installs or starts."""

from __future__ import annotations

from typing import Final

from busbar.versions import Default, split

# The image of Kubeflow Trainer's own torch runtime (kubeflow/trainer v2.3.0): torch, CUDA 13.0 and its NCCL.
TORCH_IMAGE: Final = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"

# The image of Trainer's deepspeed runtime: DeepSpeed, Open MPI, and an sshd that user 1000 runs.
DEEPSPEED_IMAGE: Final = "ghcr.io/kubeflow/trainer/deepspeed-runtime:v2.3.0"

# Requires Kubernetes 1.31 or newer, and brings JobSet 0.12.0 (kubeflow/trainer v2.3.0).
TRAINER: Final = "2.3.0"
TRAINER_CHART: Final = "oci://ghcr.io/kubeflow/charts/kubeflow-trainer"

# https://docs.k3s.io/networking/multus-ipams names the chart; this version has Multus 4.2.4 and whereabouts.
MULTUS: Final = "v4.2.401"
RKE2_CHARTS: Final = "https://rke2-charts.rancher.io"

# The release whose manifests charts/training-operator-<version>.tgz has, and the sha256 of that archive.
TRAINING_OPERATOR: Final = "1.9.4"
TRAINING_OPERATOR_SHA256: Final = "96f6267c103bb056983d3ab451bfe1b41635479b1fab6afda7253e6b2b3b7114"
# Its tags are commits: this is v1.9.4 (kubeflow/training-operator, manifests/overlays/standalone).
TRAINING_OPERATOR_IMAGE: Final = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
# The operator's own default (pkg/config/config.go).
INIT_IMAGE: Final = "alpine:3.10"

_FROM_MODULE: Final = "built from its Go module, in the lab, 2026-11-22"
DEFAULTS: Final = (
    Default("chart", "kubeflow-trainer", TRAINER, "2.3.0", _FROM_MODULE),
    Default("image", *split(TORCH_IMAGE), "2.11 of pytorch.org", "by hand on one H200, 2026-11-27"),
    Default("image", *split(DEEPSPEED_IMAGE), "0.16.9", "DeepSpeed itself, in the lab, 2026-11-22"),
    Default("chart", "rke2-multus", MULTUS, "Multus 4.3.0", "its module, on K3s v1.34.3, 2026-11-24"),
    Default("chart", "training-operator", TRAINING_OPERATOR, "1.9.4", "in the lab, 2026-11-29"),
    Default("image", *split(TRAINING_OPERATOR_IMAGE), "v1-93c5489", _FROM_MODULE),
    Default("image", *split(INIT_IMAGE)),
)
