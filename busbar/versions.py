"""The one home of versions: what is installed by default, and which combinations are known (not) to work."""

from __future__ import annotations

K3S = "v1.35.6+k3s1"
K3S_BASE_URL = "https://github.com/k3s-io/k3s/releases/download"

NVIDIA_CHARTS = "https://helm.ngc.nvidia.com/nvidia"
GPU_OPERATOR = "v26.7.0"
NETWORK_OPERATOR = "26.7.0"
NETWORK_OPERATOR_IMAGES = "nvcr.io/nvidia/mellanox"

# v0.8.2 of the operator is the code of v0.8.1; images are published for v0.6.0 to v0.8.0, and the floating
# tag :0.8 is no pin.
MPI_OPERATOR_IMAGE = "mpioperator/mpi-operator:0.8.0"

# CoreWeave's public build: CUDA 12.9.1, NCCL 2.28.3, Open MPI, nccl-tests under /opt/nccl_tests/build
# (coreweave/nccl-tests).
NCCL_TESTS_IMAGE = "ghcr.io/coreweave/nccl-tests:12.9.1-devel-ubuntu22.04-nccl2.28.3-1-8b67957"
