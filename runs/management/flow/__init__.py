"""The subcommands of `agentops flow`."""
