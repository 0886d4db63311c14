"""Sandboxes as the log knows them.

`facts` say who starts and uses a thread's machine and what runs in the background, `state` folds them; `folders` and
`variables` are what a person lets commands have.
"""
