"""Preflight: checks every host before anything is changed on any of them.

spec (requirements) -> survey (query all hosts over SSH) -> host_checks, hardware_checks (one host) and
cross_checks (several hosts) -> facts (to be stored). The script on a host only reports.
"""
