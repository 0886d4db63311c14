"""Files of a thread and of the home. They know no conversation.

`paths` are virtual and real, and trees that cannot be left; `folder`, `uploads`, `workspace`; `encodings` of text
files, `zips`, and `secret_names`, those of files that hold secrets.
"""
