"""What stacks/watch needs in the lab."""
