"""The artifact mirror: the files that a site would serve for its hosts, and the HTTP server for them."""
