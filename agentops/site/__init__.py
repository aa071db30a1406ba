"""What only the settings and the processes of a site use: its clock, static files, logging and security reports."""
