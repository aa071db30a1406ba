"""The page of components: every component of pages, with ordinary, long, empty and hostile content."""
