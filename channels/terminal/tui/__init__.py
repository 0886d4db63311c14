"""`sika log tui`: a thread's events full screen, with a slider through time.

`recording` (pure) holds the events, `lines` draws them, `app` has the keys.
"""
