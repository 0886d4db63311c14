"""Stages that every request passes before an endpoint sees it: origins, connections, errors, compression.

Also the form of a route, and the application's state, on which all endpoints stand. Imports core only.
"""
