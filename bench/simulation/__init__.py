"""Workers, runs and the database as a discrete-event simulation, fitted to measured points."""
