"""The health of the whole site, for superusers."""
