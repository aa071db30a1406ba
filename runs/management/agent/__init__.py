"""The subcommands of `agentops agent`."""
