"""Verbs that extend Sika: agents, skills, MCP servers, plug-ins, chat platforms. `skeletons/` is what `sika new`
writes.
"""
