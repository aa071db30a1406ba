"""The list of a project's runs, actions on several of them, and the page that compares two runs."""
