"""Many clients post to one run while web processes and the database are killed.

Checks the stored events, and the effect on another project.
"""
