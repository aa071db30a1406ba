"""Agent runs: their data, their execution, and all ways to observe and control them."""
