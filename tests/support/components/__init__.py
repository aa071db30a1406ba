"""The page of components: every part that pages are built of, with ordinary, long, empty and hostile content."""
