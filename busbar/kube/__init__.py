"""What is asked of, and rendered for, a running Kubernetes cluster. Nothing here imports pulumi."""
