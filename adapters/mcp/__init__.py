"""Clients of MCP servers: processes and HTTP, logins, lists of tools, results."""
