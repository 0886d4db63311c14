"""Machines that do not see this machine's files: the all-in-one image, those of a provisioner, of a distant engine.

The files are copied there and back (`mirror`); orders to their agent may be repeated (`link`, `api`).
"""
