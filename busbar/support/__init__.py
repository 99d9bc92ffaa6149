"""The support bundle: what a person sends back when a bring-up fails, without its secrets."""
