"""The Pulumi components of stacks/watch."""
