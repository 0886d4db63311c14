"""What the agent is held to: one policy a file, each an ordinary LangChain `AgentMiddleware` (see `..chain`)."""
