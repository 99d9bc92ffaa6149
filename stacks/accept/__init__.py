"""The acceptance of a cluster: criteria, a run, a signed document that can be judged again."""
