"""A chat platform for tests: one JSON line per message over a TCP connection to `Tower`."""
