"""The server's own log, and its metrics."""
