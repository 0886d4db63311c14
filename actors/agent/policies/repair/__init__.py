"""Policies that mend what a model left unfinished: calls without results, cut or empty answers."""
