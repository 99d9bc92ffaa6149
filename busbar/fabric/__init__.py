"""What a running cluster reaches, what is slow in it, and what it was last week.

`measure` runs nccl-tests and keeps the history, `localise` plans and scores runs on few nodes, `diagnosis`
runs these as jobs, `commands` are the commands. The bring-up calls it by name only (busbar/hooks.py).
"""
