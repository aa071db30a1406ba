"""Tools: the functions that agents can call, their declared effects and their results."""
