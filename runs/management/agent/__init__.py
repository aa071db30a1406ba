"""The subcommands of `agentops run` and `agentops agent`."""
