"""The debugger: why something happened, how long it took, and how a thread was at a moment. Reads records only."""
