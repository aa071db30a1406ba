"""Parts used only by the settings and the processes of a site: its clock, static files, logging, security reports."""
