"""The life of a run: requested, owned, worked through, journalled, previewed, followed, paid for.

`intake`, `commands` and `copies` decide what is asked of a thread; `run` claims, settles and ends a run, `owned`
records it, `journal` is what the agent's loop sees of that, `replay` executes a recorded run again. `prompts` is what a
model gets besides the conversation, stored once by `setups`. `previews` is the text of a message while it is made,
`follow` reads a thread live, `moments` is what it says, for every protocol and screen to print. `ledger` is what a user
has used, `windows` what models take, `share` whose share of the places a run takes. `reuse` waits until the id of a
deleted thread is free; `finish` is work that a cancellation does not cut off.
"""
