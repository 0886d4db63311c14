"""Policies of the agent, one in each file: ordinary LangChain `AgentMiddleware`s (see `actors.agent.loop.chain`).

`safety/` refuses, asks and neutralises; `limits/` ends what goes on too long; `repair/` mends what a model left
unfinished; `context/` decides what the model sees; `interaction/` is what people see of a run: tasks, questions, files.
"""
