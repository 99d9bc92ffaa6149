"""Known failure patterns: the meaning of lines and of check results, and what to run next."""
