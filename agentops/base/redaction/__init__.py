"""Redaction: replaces secrets, NUL and unpaired surrogates before a text is stored or displayed."""
