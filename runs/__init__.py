"""Agent runs: what they are, how they are executed, and every way to watch and steer them."""
