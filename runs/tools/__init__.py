"""Tools: what an agent may call, and how each declares its effects."""
