"""Policies of what people see of a run: tasks, questions, delivered files, used tokens."""
