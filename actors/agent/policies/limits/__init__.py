"""Policies that end what goes on too long: budgets, loops, outputs, subagents, time and calls."""
