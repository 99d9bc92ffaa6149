"""The hosts of a cluster: inventory, login, downloads, rendered files, and the scripts that run on them."""
