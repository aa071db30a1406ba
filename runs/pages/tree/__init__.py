"""The page that shows a run with its child runs, theirs and so on, and what each of them costs."""
