"""What must hold after a schedule, and what all of them came to."""
