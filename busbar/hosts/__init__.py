"""The machines of a cluster: inventory, downloads, rendered files, and the scripts that run on them."""
