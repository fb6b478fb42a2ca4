"""What the apps of gradient synchronisation and of coflows do."""
