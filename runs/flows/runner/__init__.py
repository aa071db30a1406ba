"""The runner of flows: it looks at flow runs that are due, and stores what the kernel decides about them."""
