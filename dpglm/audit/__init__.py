"""Audits: does an estimator keep what its ledger says, as far as an attack can tell?"""

from dpglm.audit.choices import audit_choices, choice_counts
from dpglm.audit.designs import canary_scores
from dpglm.audit.grey_box import largest_ratio, record, replay
from dpglm.audit.report import AuditReport, audit_estimator, audit_table
from dpglm.audit.statistics import AuditPart, AuditResult, CanaryScores, audit_scores

__all__ = [
    "AuditPart", "AuditReport", "AuditResult", "CanaryScores", "audit_choices", "audit_estimator",
    "audit_scores", "audit_table", "canary_scores", "choice_counts", "largest_ratio", "record",
    "replay",
]  # fmt: skip
