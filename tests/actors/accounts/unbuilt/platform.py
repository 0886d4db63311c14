"""Needs a package that nobody has."""

import importlib

importlib.import_module("no_such_sdk")
