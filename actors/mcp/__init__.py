"""The MCP servers: lists what they offer, and calls their tools."""
