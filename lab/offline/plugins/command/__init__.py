"""The plugin `command`: local and remote commands, files copied to a host."""
