"""Files of recorded events: their format, how they are written, read, redacted and imported, and pinned runs.

Nothing here knows of moments, differences or what-ifs: those read a file as they read a log, by `core.replay.source`.
"""
