"""One process: its loops and actors are started, supervised and drained.

`system` does that; `context` is what a handler is given. `dispatch` is the safety net that turns the log's events into
wake-ups, `answers` tells what has been handled, `ordering` keeps the order of ordered actors, `own_state` is the state
that an actor declares. `governor` says by lag and `memory` whether the process bears more runs, `admission` gives them
places and turns (decision 42). `letters` are dead letters and decisions about them.

`vitals` says what runs where, `readiness` what is missing to take work, `applied` which configuration is in force,
`stalls` which code holds up the event loop, `clock` that the clock was set back; `asyncapi` describes the bus to actors
in other languages; `servers` are the processes of a cluster.
"""
