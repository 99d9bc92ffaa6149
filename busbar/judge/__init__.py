"""What all gates share: checks and their statuses, verdicts, and the way from a job to one."""
