"""From a running MPIJob to a verdict: watch the job, follow its log, keep the result."""
