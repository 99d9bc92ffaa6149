"""Preflight: look at every host before anything is changed on any of them.

spec (what is asked) -> survey (ask all hosts over SSH) -> judge (one host) and fleet (hosts among themselves)
-> facts (what is kept). A host's script only reports; everything is judged here.
"""
