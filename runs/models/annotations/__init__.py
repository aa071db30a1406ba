"""Tables of what people add to runs and to the list of runs."""
