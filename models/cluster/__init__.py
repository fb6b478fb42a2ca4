"""The hierarchical policy of schedulers of a cluster."""
