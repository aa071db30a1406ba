"""Live streams of a log: one reader per log and process, fanned out to clients as JSON or HTML."""
