"""What belongs to a user besides threads: agents, assistants, schedules."""
