"""Code shared by tests. Tests import from no other package of tests."""
