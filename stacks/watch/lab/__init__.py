"""The parts of the lab that stacks/watch needs."""
