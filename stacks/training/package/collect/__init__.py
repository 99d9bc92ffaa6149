"""From a running training job to a verdict: watch the Job, follow the log of its first pod, judge it."""
