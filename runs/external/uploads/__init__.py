"""Uploaded files: stored with their content, imported in the background by a worker, and removed afterwards."""
