"""The list of a project's runs, and bulk resume."""
