"""How `agentops export` writes its files."""
