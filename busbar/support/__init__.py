"""The support bundle: the file to send when a bring-up fails, without secrets."""
