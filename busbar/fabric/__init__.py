"""The bandwidth that a running cluster reaches, the parts of it that are slow, and its history.

`measure` runs nccl-tests and keeps the history, `localise` plans and scores runs on few nodes, `diagnosis`
runs these as jobs, `commands` are the commands. The bring-up calls it by name only (busbar/hooks.py).
"""
