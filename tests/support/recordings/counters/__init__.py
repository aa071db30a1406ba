"""Counts the contents of other programs' recordings directly from their formats, with one module per family of formats.

Shares no code with the importers: the modules import nothing from the site, and a test of the corpus checks that.
"""
