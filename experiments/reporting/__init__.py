"""Runs of former days in one report, and what of the literature is reproduced here."""
