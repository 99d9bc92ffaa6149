"""Tests import the scripted cluster as `kube_cluster` (test folders are no packages)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
