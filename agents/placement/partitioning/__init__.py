"""Walks and bounds for the max-load and the latency objective."""
