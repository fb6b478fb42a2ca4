"""Collectives: which messages they are made of, and how long they take."""
