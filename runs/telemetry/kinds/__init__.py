"""The built-in kinds of sinks, one file each."""
