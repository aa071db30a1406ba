"""For tests of agentops.client."""
