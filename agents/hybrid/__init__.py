"""Planners of hybrid plans: stages, replicas and shards, on which devices, in what order."""
