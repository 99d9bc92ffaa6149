"""The plugin `random`: values that are drawn once."""
