"""The only place that knows Ray."""
