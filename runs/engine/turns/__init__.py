"""The two parts of a turn that reach the outside world: the model call, and the tool calls that it asks for."""
