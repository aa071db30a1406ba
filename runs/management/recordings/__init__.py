"""What the commands about fixtures have in common."""
