"""Counts what is in recordings of other programs straight from the facts of their formats, one module for each family.

Shares no code with the importers: the modules import nothing of the site, and a test of the corpus checks that.
"""
