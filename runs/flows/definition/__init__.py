"""The definition of a flow: its shape, its meaning, and its JSON Schema."""
