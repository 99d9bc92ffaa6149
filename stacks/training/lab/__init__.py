"""What the lab needs to train: programs, images and charts, beside those of the core."""
