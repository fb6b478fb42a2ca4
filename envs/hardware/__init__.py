"""Devices, servers and the routes between them."""
