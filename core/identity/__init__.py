"""Principals: people, programs and the server's own processes; their permissions and their limits."""
