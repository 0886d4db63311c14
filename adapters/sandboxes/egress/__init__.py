"""The way of sandboxed commands to the network: a proxy that knows where they may connect to, and records it."""
