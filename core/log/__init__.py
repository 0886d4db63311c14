"""The event log.

`store` is the only door to it: it appends, on top of `feed`, which follows, and `reader`. `repository` has the
aggregates of one kind, folded, kept in memory, decided on; `snapshots` are folded aggregates in files, so that a cold
one is not read from its beginning. `blobs` are bodies too big for the log, `chain` the hashes of its events, `erasure`
sees that what is deleted is not on the disk any more.
"""
