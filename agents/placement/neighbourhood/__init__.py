"""The walk of the local search: its starts, its moves, and how they are judged."""
