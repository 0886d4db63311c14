"""The loop of a run: the agent (`agent`), its rounds (`rounds`, or LangGraph's `graph` where hooks need one), the
policies in their order (`chain`), what records and resumes (`recorder`), and what reaches the outside
(`effects`).
"""
