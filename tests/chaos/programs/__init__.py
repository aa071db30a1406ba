"""Programs that serve the agent `trip` in processes which the rig kills: one for each kind of durable agent.

They import nothing of the site, and no program imports another. `interface` lists the parts of a program.
"""
