"""The lead agent. Reading order: see the README of `actors`."""
