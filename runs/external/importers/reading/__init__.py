"""Shared parts of importers of finished conversations: values with their places, messages, and the events from them."""
