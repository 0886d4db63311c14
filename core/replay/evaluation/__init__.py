"""Evaluations: recorded threads go on live under other conditions, and checks tell whether the result is right."""
