"""The commands of the fabric; busbar/cli/__init__.py gives each its place in the help."""
