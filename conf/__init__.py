"""What was chosen: the Hydra configuration tree."""
