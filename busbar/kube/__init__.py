"""Access to a running cluster: the API client, waiting, and what its objects report."""
