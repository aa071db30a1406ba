"""Old rows, contradictory rows, and backups."""
