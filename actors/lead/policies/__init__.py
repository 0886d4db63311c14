"""Policies of the agent, one in each file: ordinary LangChain `AgentMiddleware`s (see `actors.lead.loop.chain`)."""
