"""Benchmarks. Each compares agentops with a peer or a physical limit in the same run and prints the ratio."""
