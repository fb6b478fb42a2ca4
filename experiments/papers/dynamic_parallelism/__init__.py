"""Dynamic data and model parallelism: groups of pipelines chosen anew as workers change."""
