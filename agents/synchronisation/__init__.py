"""Plans of gradient synchronisation: rings, trees, packed forests, sums inside the network."""
