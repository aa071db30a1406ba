"""Commands about projects, keys and shells."""
