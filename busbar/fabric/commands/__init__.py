"""The commands of the fabric; busbar/cli/main.py gives each its place in the help."""
