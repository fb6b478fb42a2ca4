"""Dividing a graph between accelerators and a host: objectives of pipelines and of inference."""
