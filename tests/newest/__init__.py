"""Newest client programs, run against a scripted model server, and their records on the site."""
