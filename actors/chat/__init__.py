"""Conversations on chat platforms, on the server's side. `actor` has the reading order."""
