"""Runs as traces: a run, its turns, model calls and tool calls as nested observations, for OTLP and Langfuse."""
