"""Recorded events as lines. `story` has a line for each event, made of `phrases`; `digest`, `steps`, `tree` and `diff`
sum up; `views` writes them.
"""
