"""The thread-centric event protocol: one open stream over all runs of a thread, and commands beside it.

What its clients depend on: Python `langgraph_sdk` 0.4.14, JavaScript `@langchain/langgraph-sdk` 1.11 to 1.15, and
`@langchain/react` 1.1 on top of it. "Server" is what `langgraph dev` 0.16.7 was seen to do.

| `POST …/commands` | |
| --- | --- |
| sent | Python: `run.start`, `input.respond`. JS: the same, and `agent.getTree` |
| answer | 200 with `success` or `error`; 202 and 204 count as no answer; 400 only for what is no command |
| `meta.applied_through_seq` | Python: cursor of later streams. JS: what is older is history; 0: not known. Server: 0 |
| open run | without `multitask_strategy` it is interrupted; JS sends `multitaskStrategy` too |
| questions | `input.respond`: one, or a list `responses`. With `run.start` the input is the answer |

| `POST …/stream/events` | |
| --- | --- |
| opened | Python: one for all projections, one for `lifecycle` and `input`. JS: again with each new subscription |
| sent | all runs from the beginning, those rolled back not |
| `since` | Python: the greatest `seq` seen. JS: never, it reads everything again |
| `seq` | of the unfiltered sequence: a filtered stream has gaps |
| `event_id` | both drop what they know. Python: the last 10 000; JS: all, also for each subscription |
| a clean end | Python: a fault. JS: a reconnect. So it is one to neither: see `transports` |
| unknown thread | 404 is final, but Python tries again after `run.start`; JS may open a socket before. Server: open |

| events | |
| --- | --- |
| text | both concatenate deltas; Python adds what is missing from `content-block-finish`, JS does not |
| routing | Python: by `id` in the data. JS: to the last `message-start` of the namespace |
| `lifecycle` | JS finds the run in the `event_id`, `synth:<run>:…`. Python takes any run's end for that of its own |
| end of a run | `completed`, `failed`; JS also `interrupted`, which a cancelled run is, too |
| `input.requested` | JS reads `payload`, Python `value`; before `interrupted` |
| `input.answered` | JS: `interrupt_ids`; other tabs close their questions |
| `checkpoints` | `id`, `parent_id`, `step`; JS pairs it with the next `values`, to fork from a message |
| `timestamp` | milliseconds. JS drops what is older than the state it has loaded |
"""
