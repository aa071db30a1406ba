"""Redaction: secrets, NUL and lone surrogates leave a text before it is stored or shown."""
