"""The site: settings, entry points, wiring, and what all apps share: projects, HTTP, the base of the admin."""
