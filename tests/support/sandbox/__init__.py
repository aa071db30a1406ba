"""Attacks on the sandbox of commands, and the resources outside it that they try to reach."""
