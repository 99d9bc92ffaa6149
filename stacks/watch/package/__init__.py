"""Monitoring of a measured cluster: the parts of stacks/watch without Pulumi.

Data flow one way: config and the cluster's outputs -> series, rules, manifests; the running cluster -> checks
-> outputs. The core of busbar does not import this package.
"""
