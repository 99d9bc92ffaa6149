"""The plugin `kubernetes`: objects of any kind on one cluster."""
