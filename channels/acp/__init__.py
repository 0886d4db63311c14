"""Sika as an agent of the Agent Client Protocol: `agent` (sessions), `mapping` (what is said), `stdio` (how)."""
