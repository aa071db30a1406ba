"""The two parts of a turn that reach the outside world: the model call and its tool calls."""
