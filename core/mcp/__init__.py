"""MCP servers as the log knows them.

`servers` folds what is configured and offered, `change` is what people may change. `tools` and `names` are what runs
see, `references` what messages name, `asking` what servers ask. `grants` are logins and tokens as facts, `oauth` is the
protocol's words, `login` how a person gets access; `authorisation` and `challenge` are the headers of a call.
"""
