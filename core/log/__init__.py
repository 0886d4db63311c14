"""The event log: appended and read (`store`, `reader`), heard (`feed`), folded and decided on (`repository`,
`snapshots`), big bodies (`blobs`), erased (`erasure`), chained by hashes (`chain`).
"""
