"""What is built or downloaded once and kept in the cache: Go tools, official releases."""
