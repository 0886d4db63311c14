"""Execution of recorded runs again: replay, what-if, forks, pins and evaluations. None of them is an actor."""
