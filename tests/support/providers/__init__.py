"""Model providers on loopback."""
