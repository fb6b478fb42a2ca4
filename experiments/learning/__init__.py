"""What is learned, how it is trained, evaluated and exported."""
