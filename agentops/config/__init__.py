"""Groups of settings that are long enough for a file of their own, read by agentops.settings."""
