"""Computation graphs: `OpGraph`, its capture, readers, generators and algebra."""
