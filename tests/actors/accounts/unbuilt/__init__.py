"""A platform whose SDK is not installed."""
