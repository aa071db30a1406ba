"""Base classes of the Django administration: bounded lists, project scopes and action forms."""
