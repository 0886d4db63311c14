"""Messages over HTTP, for programs: a signed request brings one in, and its answer goes out as one. `signature.py` →
`platform.py`.
"""
