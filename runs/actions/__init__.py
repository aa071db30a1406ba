"""Actions on runs by people, programs and policies: one audited function per verb, for every entry point."""
