"""Posted prices against an adversary: problems, proved ratios, a game of two networks."""
