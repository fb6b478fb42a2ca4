"""From a config to a step, plans of it, and their comparison."""
