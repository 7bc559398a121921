"""Audits: does an estimator keep what its ledger says, as far as an attack can tell?"""

from dpglm.audit.choices import audit_choices
from dpglm.audit.report import AuditReport, audit_estimator, audit_table
from dpglm.audit.statistics import audit_scores

__all__ = ["AuditReport", "audit_choices", "audit_estimator", "audit_scores", "audit_table"]
