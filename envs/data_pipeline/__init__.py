"""Data for graph neural networks: graphs, sampled neighbourhoods, caches, stages."""
