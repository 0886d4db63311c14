"""The page: people talk to the agent in a browser."""
