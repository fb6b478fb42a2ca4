"""Dynamic programming over the ideals (downsets) of a forward graph."""
