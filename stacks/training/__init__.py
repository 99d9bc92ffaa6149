"""Training on a measured cluster."""
