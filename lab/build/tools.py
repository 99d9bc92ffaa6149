"""Programs that the lab's container images and drills need, each with the module that pins its version."""

from __future__ import annotations

from lab.build.go import MODULES, Tool

# They run in pods, and the hosts reach no registry: images are always built here.
TOOLS = (
    Tool("mpi-operator", "github.com/kubeflow/mpi-operator/cmd/mpi-operator", MODULES / "mpi-operator"),
    Tool("coredns", "github.com/coredns/coredns", MODULES / "coredns"),
)
# An S3 server, for snapshots, and an NFS server with its client.
S3_TOOL = Tool("versitygw", "github.com/versity/versitygw/cmd/versitygw", MODULES / "s3")
NFS_TOOL = Tool("nfs-replacement", ".", MODULES / "nfs")
# What only `make drills` needs: built before the first test.
DRILL_TOOLS = (S3_TOOL, NFS_TOOL)
