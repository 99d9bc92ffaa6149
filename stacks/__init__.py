"""Capabilities: software on a measured cluster. Each folder is one, and capability.py is its entry."""
