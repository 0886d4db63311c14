"""A view of the page."""
