"""What every request passes before an endpoint sees it: the form of a route, origins, connections, errors, compression.

Also the application's state, on which all endpoints stand. Imports core only.
"""
