"""Shared parts of components: commands on hosts and cluster, Helm releases, the stack configuration."""
