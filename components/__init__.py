"""The parts of the bring-up, one Pulumi component per file; each takes (name, args, opts)."""
