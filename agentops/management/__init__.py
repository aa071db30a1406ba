"""Management commands for developers of agentops."""
