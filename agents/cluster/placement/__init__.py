"""Rules that say on which nodes the next gang starts."""
