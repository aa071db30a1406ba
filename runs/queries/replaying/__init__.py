"""What a replay of a run shows: its states, and a summary."""
