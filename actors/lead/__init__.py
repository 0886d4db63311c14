"""The lead agent. Reading order: `actor`, `agent`, `recorder`, `messages`, `prompt`."""
