"""Jobs in an order of priority get the fastest GPUs there are, and move to faster ones."""
