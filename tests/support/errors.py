"""Errors as libraries raise them."""

from __future__ import annotations


def caused(outer: BaseException, *inner: BaseException) -> BaseException:
    """Returns an error with the causes that clients give it."""
    error = outer
    for cause in inner:
        error.__cause__ = cause
        error = cause
    return outer
