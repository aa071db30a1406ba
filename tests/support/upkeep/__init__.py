"""Old, contradicting and backed up rows."""
