"""Serves the component Cluster. The language host runs `python FOLDER ENGINE`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from busbar.components.provider import serve

serve()
