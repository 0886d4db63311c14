"""The configuration.

`load` reads it, `settings` composes its sections (`server`, `sandbox`, `agent`, `subagents`, `skills`, `mcp`, `acp`,
`channels`), `reference` explains them: the text below a field is its entry. `deerflow` and `extensions` are DeerFlow's
keys, `upgrade` writes a file with ours; `redaction` knows the secrets in force, which are replaced wherever text of
others becomes a fact, a stream, a line or an answer.
"""
