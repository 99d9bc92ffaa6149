"""Watching a measured cluster: what stacks/watch needs beside Pulumi.

One way: config and the cluster's outputs -> series, rules, manifests; what runs on the cluster -> checks ->
outputs. The core of busbar does not import this package.
"""
