"""The policies of an agent, applied to a run that nobody watches."""
