"""Replacements of the Pulumi provider plugins `command`, `random` and `kubernetes`: see README.md."""
