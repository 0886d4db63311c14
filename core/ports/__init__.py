"""Ports that adapters implement, without their libraries.

`sandbox`, `models`, `mcp` (and `mcp_frames`, the messages to the process of a session), `agents`, `batches`,
`documents`, `images`, `guardrails`.
"""
