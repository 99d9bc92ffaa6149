"""Known failure patterns: which lines and which check results mean what, and what to run next."""
