"""Studies of many runs: cells, where they take place, tables of them."""
