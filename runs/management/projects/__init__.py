"""Subcommands of `agentops project` that need runs."""
