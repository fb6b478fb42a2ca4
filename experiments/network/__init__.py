"""What the commands of gradient synchronisation and of flows do."""
