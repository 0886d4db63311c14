"""What one run is done with: options, limits, breakpoints, circuit breakers, and the context that policies get
(`attempt`). Imports only `messages`.
"""
