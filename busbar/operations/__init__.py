"""Operations on hosts of a running cluster over SSH, from the machine that runs Pulumi."""
