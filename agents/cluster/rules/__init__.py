"""Rules that say where the next gang starts: on whole GPUs (`gangs`) or on shared ones."""
