"""NATS. Nobody else names its streams, subjects or errors.

`subjects` (and `streams`: every name), `endpoint` and `connection`; `queue` and `pull` are wake-ups: leases, timers,
dead letters; `rpc` are questions to actors that change nothing, `peers` work that another process holds; `embedded` is
the nats-server that comes along.
"""
