"""Translates other event vocabularies on ingest and on read. The log itself has only one vocabulary."""
