"""Policies as folders that decide without the framework."""
