"""The parts of the bring-up, one Pulumi component a file; each takes a frozen dataclass of arguments."""
