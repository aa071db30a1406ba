"""What an agent's policies do about a run that nobody watches."""
