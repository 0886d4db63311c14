"""Models: made of the configuration (`factory`), their answers read (`reader`), tried (`trial`, `probe`), recorded
and served again (`recorded`).
"""
