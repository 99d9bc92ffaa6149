"""What is done to hosts of a running cluster from the machine that runs Pulumi, over SSH."""
