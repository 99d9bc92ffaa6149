"""From a measured fabric to a proven training run: the parts of stacks/training without Pulumi.

Data flow one way: config and the cluster's outputs -> target -> manifests; the run's log -> checks -> verdict
-> outputs. The core of busbar does not import this package.
"""
