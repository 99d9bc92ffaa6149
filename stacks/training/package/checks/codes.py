"""Stable identifiers of the checks' findings, which other programs read."""

from __future__ import annotations

from busbar.judge import checks


class Code(checks.Code):
    """Codes of the checks on a training run."""

    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_UNKNOWN = "job.unknown"

    LOG_WHOLE = "log.whole"
    LOG_NO_RUN = "log.no_run"
    LOG_OTHER_SCHEMA = "log.other_schema"
    LOG_DAMAGED = "log.damaged"
    LOG_NO_END = "log.no_end"
    LOG_STEPS_MISSING = "log.steps_missing"

    RANKS_COMPLETE = "ranks.complete"
    RANKS_WRONG_COUNT = "ranks.wrong_count"
    RANKS_OTHER_NODES = "ranks.other_nodes"
    RANKS_WRONG_PER_NODE = "ranks.wrong_per_node"
    RANKS_OTHER_DEVICE = "ranks.other_device"
    RANKS_OTHER_BACKEND = "ranks.other_backend"

    LOSS_FALLS = "loss.falls"
    LOSS_NOT_FINITE = "loss.not_finite"
    LOSS_NOT_FALLING = "loss.not_falling"

    DATA_DISTINCT = "data.distinct"
    DATA_SAME = "data.same"

    GRADIENTS_AGREE = "gradients.agree"
    GRADIENTS_DIFFER = "gradients.differ"
    GRADIENTS_RANKS_MISSING = "gradients.ranks_missing"
    GRADIENTS_CONSTANT = "gradients.constant"

    STORAGE_SHARED = "storage.shared"
    STORAGE_NOT_SHARED = "storage.not_shared"
    STORAGE_NOT_PROBED = "storage.not_probed"
    STORAGE_TOO_SLOW = "storage.too_slow"

    INTERFACES_USED = "interfaces.used"
    INTERFACES_NOT_USED = "interfaces.not_used"
    INTERFACES_NOT_COUNTED = "interfaces.not_counted"

    CHECKPOINT_WRITTEN = "checkpoint.written"
    CHECKPOINT_MISSING = "checkpoint.missing"
    CHECKPOINT_TOO_SMALL = "checkpoint.too_small"

    RECOVERY_RESUMED = "recovery.resumed"
    RECOVERY_NOT_KILLED = "recovery.not_killed"
    RECOVERY_NOT_RESTARTED = "recovery.not_restarted"
    RECOVERY_STARTED_ANEW = "recovery.started_anew"
    RECOVERY_OTHER_CHECKPOINT = "recovery.other_checkpoint"
    RECOVERY_OTHER_LOSS = "recovery.other_loss"
    RECOVERY_NOT_SHARED = "recovery.not_shared"

    ALLREDUCE_CORRECT = "allreduce.correct"
    ALLREDUCE_WRONG = "allreduce.wrong"
    ALLREDUCE_NOT_MEASURED = "allreduce.not_measured"

    BUSBW_REACHED = "busbw.reached"
    BUSBW_TOO_LOW = "busbw.too_low"
    BUSBW_NOT_MEASURED = "busbw.not_measured"
    BUSBW_NO_EXPECTATION = "busbw.no_expectation"

    FABRIC_PROVEN = "fabric.proven"
    FABRIC_NOT_REQUIRED = "fabric.not_required"
    FABRIC_GLOO = "fabric.gloo"
    FABRIC_NO_MESSAGES = "fabric.no_messages"
    FABRIC_NOT_ALL_UP = "fabric.not_all_up"
    FABRIC_FAILED = "fabric.failed"
    FABRIC_UNKNOWN = "fabric.unknown"
