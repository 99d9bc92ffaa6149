"""Capabilities: what lives on a measured cluster. Each folder is one, behind its capability.py."""
