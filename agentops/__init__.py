"""The site: settings, entry points, and the parts that all apps share: projects, HTTP, the base of the admin."""
