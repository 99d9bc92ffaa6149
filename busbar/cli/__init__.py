"""The command line, `python -m busbar`; main.py has the table of commands."""
