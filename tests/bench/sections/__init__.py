"""One section per file; each yields the rows of its part of the table.

None yields from inside a `with`: whoever reads the rows may stop at any of them.
"""
