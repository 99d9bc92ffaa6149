"""Which node, rail or switch of a running stack is slow: the stages of busbar.localise as jobs there.

`Diagnosis` runs them, one job each, and keeps what is known; `findings_of` says what that means.
"""

from busbar.diagnosis.findings import Findings, details, findings_of
from busbar.diagnosis.page import write_page
from busbar.diagnosis.stages import Diagnosis, Scope, State

__all__ = ["Diagnosis", "Findings", "Scope", "State", "details", "findings_of", "write_page"]
