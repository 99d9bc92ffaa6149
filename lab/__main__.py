"""`python -m lab`."""

import os

from lab.cli import main

os.umask(0o022)  # what is put on hosts, and into images and packages, is for all users there
main()
