"""Files of a thread and of the home: paths, folders, uploads, the workspace, encodings, archives.

Files know no conversation: `core.log` is the highest room that they import.
"""
