"""Components of stacks/training. The components of the core do not import them."""
