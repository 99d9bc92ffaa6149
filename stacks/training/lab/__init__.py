"""Programs, images and charts that the lab needs for training, beside those of the core."""
