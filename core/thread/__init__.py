"""A conversation as it is folded from its events. Decides nothing about runs: `core.runs` does, and imports it.

`fold` (and `fold_runs`) makes its `state` of facts, in `steps`; `entries` is what it lists, `values` say how its values
change. `threads` keeps it folded, `snapshots` is how it is written down, `past` holds its many commits and runs in
`pages`; `earlier` and `prune` are about its past, `rewind` is a thread as it was before a run. `approvals` is what
calls wait for, `ownership` whose it is, `numbers` are those of messages; `subagents` names conversations that answer a
call of another one, `batches` what becomes of many; `usage` and `tokens` are what it used, `goals` what it is to reach.
`instructions`, `shares`, `runs`, `turns` and `messages` look things up in it.
"""
