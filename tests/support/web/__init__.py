"""Servers and clients of HTTP, streams and mail."""
