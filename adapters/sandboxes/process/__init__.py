"""One command of a thread on this machine: recorded once (`record`), started from a template (`launch`, `spare`),
watched (`supervisor`), limited (`cgroups`, `usage`, `quota`), in the machine that the commands of a thread share.

Knows no provider. `supervisor`, `launch`, `holder`, `usage` and `processes` run as programs, and import little.
"""
