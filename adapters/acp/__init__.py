"""Other agents on this machine as tools (Agent Client Protocol): their processes and sessions."""
