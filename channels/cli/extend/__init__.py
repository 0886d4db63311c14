"""Verbs that extend Sika: agents, skills, MCP servers, plug-ins, chat platforms."""
