"""MCP servers as the log knows them: what they offer, what changed, grants and logins; and their tools in runs."""
