"""The search over all runs of a project, and in one run."""
