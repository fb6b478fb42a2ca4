"""Planners of partitions: the max-load and the latency objective."""
