"""Multi-agent PPO for the schedulers of `ClusterParallel-v0`."""
