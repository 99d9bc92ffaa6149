"""Metrics, alerts and dashboards of a measured cluster."""
