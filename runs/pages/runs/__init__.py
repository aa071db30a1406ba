"""The list of a project's runs, and resuming many of them."""
