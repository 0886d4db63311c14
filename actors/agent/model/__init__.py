"""Calls of models: asked with retries and fallbacks (`ask`), answers put together and read (`assembly`, `answer`),
failures classified (`failures`, `refusals`), and the last answer of a run that met a limit.
"""
