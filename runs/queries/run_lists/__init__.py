"""The list of a project's runs: filters, orders, and the bounded search for a page."""
