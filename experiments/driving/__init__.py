"""A scheduler that acts on a live cluster, or watches it."""
