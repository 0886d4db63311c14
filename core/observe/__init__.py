"""The log in numbers (`metrics`), and what the process says, without secrets (`logs`)."""
