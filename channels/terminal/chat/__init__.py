"""`sika chat`, on the client: `chat` is the conversation, `shown_run` a run and Ctrl-C, `render` what is seen of it,
`questions` what is asked; the rest are its commands.
"""
