"""Policies of multi-job scheduling: which job runs when, and where."""
