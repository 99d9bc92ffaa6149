"""Stand-ins for the Pulumi provider plugins `command`, `random` and `kubernetes`: see README.md here."""
