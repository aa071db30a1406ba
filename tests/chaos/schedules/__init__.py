"""What is done to a site: schedules by crash point, step, seed, and by sabotage."""
