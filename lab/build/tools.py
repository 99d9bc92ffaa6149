"""Programs that the lab's container images and drills need."""

from __future__ import annotations

from lab.build.go import MODULE, Tool

# They run in pods, and the hosts reach no registry: images are always built here.
TOOLS = (
    Tool("mpi-operator", "github.com/kubeflow/mpi-operator/cmd/mpi-operator"),
    Tool("coredns", "./coredns"),
    Tool("devices", "./devices"),
)
# An S3 server, for snapshots, and an NFS server with its client. The first one asks for other versions of
# the SDKs of AWS and Azure than the Pulumi CLI does.
S3_TOOL = Tool("versitygw", "github.com/versity/versitygw/cmd/versitygw", MODULE / "s3")
NFS_TOOL = Tool("nfs-replacement", "./nfs")
# What only `make drills` needs: built before the first test.
DRILL_TOOLS = (S3_TOOL, NFS_TOOL)
