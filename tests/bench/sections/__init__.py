"""One section per file; each yields the rows of its part of the table."""
