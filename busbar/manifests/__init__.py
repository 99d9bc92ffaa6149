"""Kubernetes objects and Helm values as pure functions of the configuration."""
