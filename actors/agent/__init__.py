"""The agent, as a library: what executes a run, whoever it is for. The lead, its subagents, what-ifs and rehearsals of
recorded runs are made of it. Reading order: see the README of `actors`.
"""
