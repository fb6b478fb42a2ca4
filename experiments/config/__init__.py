"""What a command line means: names, signatures, composition, and the objects built of it."""
