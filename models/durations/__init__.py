"""What jobs may still need: a learned posterior over the work left."""
