"""What components share: commands on hosts and on the cluster, Helm releases, the stack configuration."""
