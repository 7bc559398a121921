"""Audits: does an estimator keep what its ledger says, as far as an attack can tell?"""

from dpglm.audit.choices import audit_choices, choice_counts
from dpglm.audit.report import (
    AuditPart,
    AuditReport,
    AuditResult,
    CanaryScores,
    audit_estimator,
    audit_scores,
    audit_table,
    canary_scores,
)

__all__ = [
    "AuditPart",
    "AuditReport",
    "AuditResult",
    "CanaryScores",
    "audit_choices",
    "audit_estimator",
    "audit_scores",
    "audit_table",
    "canary_scores",
    "choice_counts",
]
