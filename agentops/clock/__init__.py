"""The clock: sends the periodic tasks of the site, by a schedule that is in the database."""
