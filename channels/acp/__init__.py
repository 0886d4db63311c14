"""Sika as an agent of the Agent Client Protocol: `agent` (sessions), `mapping` (messages), `stdio` (transport)."""
