"""What all apps share: composition, run folders, provenance, progress, tables."""
