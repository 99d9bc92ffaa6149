"""Which node, rail or switch of a cluster is slow: the stages of busbar.fabric.localise as jobs there.

`Diagnosis` runs them, one job each, and keeps what is known; `findings_of` says what that means. A `Backend`
starts the jobs: `kubernetes` has that of a stack of K3s.
"""

from busbar.fabric.diagnosis.findings import Findings, findings_of
from busbar.fabric.diagnosis.stages import Backend, Diagnosis, Scope, State

__all__ = ["Backend", "Diagnosis", "Findings", "Scope", "State", "findings_of"]
