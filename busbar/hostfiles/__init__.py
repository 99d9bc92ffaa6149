"""The files that busbar puts on hosts, as pure functions from configuration to text."""
