"""Readers of traces: one file per public format, all to the canonical form.

Canonical form: jobs sorted by (submission, id), the first submission at second 0. Ids are compared
as numbers where all of them are numbers, as texts otherwise.
"""
