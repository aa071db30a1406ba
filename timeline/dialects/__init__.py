"""Other vocabularies of events, translated at the edge: on ingest and on read. The log knows only its own."""
