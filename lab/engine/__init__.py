"""The environment of the Pulumi engine: CLI, plugins, backend."""
