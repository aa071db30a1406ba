"""The pages about runs of other programs: imports of their transcripts, and the events that they send."""
