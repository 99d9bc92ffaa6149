"""From a measured fabric to a proven training run: what stacks/training needs beside Pulumi.

One way: config and the cluster's outputs -> target -> manifests; the run's log -> checks -> verdict ->
outputs. The core of busbar does not import this package.
"""
