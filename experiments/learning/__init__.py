"""What is learned, how it is trained, examined and exported."""
