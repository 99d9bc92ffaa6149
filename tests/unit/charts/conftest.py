"""The site and the cluster of the kube tests serve here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kube"))
sys.path.insert(0, str(Path(__file__).parent))
