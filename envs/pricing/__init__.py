"""Requests at posted prices: what may be taken, what hindsight takes, and the worst case."""
