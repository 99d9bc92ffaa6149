"""Storage that all workers share: its configuration, its objects, and the wait until its claim is bound."""
