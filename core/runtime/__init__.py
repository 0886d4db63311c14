"""The runtime of actors: wake-ups (`dispatch`, `ordering`), places at work (`admission`, `governor`), the process
(`system`) and what it tells of itself.
"""
