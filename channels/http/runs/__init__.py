"""What clients send and read whatever protocol they speak: requests for runs, now and later, their messages, and keys
of repeated requests.

Imports `endpoints` and `server`.
"""
