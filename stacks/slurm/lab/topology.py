"""The hosts of the Slurm cluster in the lab, as constants that `Pulumi.dev.yaml` may rely on."""

from __future__ import annotations

from lab.topology import Host

CONTROLLER = Host("ctl-1", "plain", "10.77.0.131")
LOGIN = Host("login-1", "plain", "10.77.0.132")
COMPUTE = tuple(Host(f"compute-{number}", "gpu", f"10.77.0.{140 + number}") for number in (1, 2, 3))
HOSTS = (CONTROLLER, LOGIN, *COMPUTE)
