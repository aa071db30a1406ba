"""The site: settings, entry points and wiring. Its rooms hold projects, HTTP and the base of the administration."""
