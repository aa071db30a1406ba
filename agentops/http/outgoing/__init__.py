"""Requests to receivers that people name: which addresses are allowed, and how messages are signed."""
