"""Rows written and read many at a time, without the ORM; their commits, and what follows them."""
