"""BGL: how sampled neighbourhoods reach GPUs: caches, orders, partitions, stages."""
