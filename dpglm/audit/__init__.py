"""Audits: does an estimator keep what its ledger says, as far as an attack can tell?"""

from dpglm.audit.report import AuditReport, audit_estimator

__all__ = ["AuditReport", "audit_estimator"]
