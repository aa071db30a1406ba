"""Providers: how a model is asked, when a failed call is repeated, and how a message is stored."""
