"""`helm.sh/v3:Release` of the plugin `kubernetes`, through the `helm` command."""
