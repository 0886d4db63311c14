"""Recorded events as lines. `story` has a line for each event, in the words of its type; `digest`, `steps`,
`tree` and `diff` sum up; `views` writes them.
"""
