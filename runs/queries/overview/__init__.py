"""What the start page of a project shows: what needs a person, what runs now, and sums of the last days."""
