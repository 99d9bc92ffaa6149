"""Helm's releases on the cluster: whether they are there, what they wait for, and their recovery."""
