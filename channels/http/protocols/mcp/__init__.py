"""The Model Context Protocol, as a server (`/mcp`): its tools are imported when the first client comes."""
