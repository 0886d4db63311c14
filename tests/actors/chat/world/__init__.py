"""A platform of the tests: only what is true of it."""
