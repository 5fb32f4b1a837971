"""Others that minimise the same objective, tuned and timed by the same rules."""
