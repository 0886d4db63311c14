"""Things of a user besides threads, each a fold of facts.

`assistants`, `agents` (as files: `agent_bundles`), `store`, and `schedules`, of which `launch` fires what is due.
"""
