"""Studies around a fit: comparisons, utility graphs, figures, reports and the command line."""

from dpglm.study.comparison import compare
from dpglm.study.models import SKOPS_TYPES, model_card, register_onnx
from dpglm.study.plots import (
    AuditDisplay,
    CoefficientDisplay,
    ComparisonDisplay,
    OdometerDisplay,
    ScoresDisplay,
    ShapeDisplay,
    TradeOffDisplay,
    UtilityGraphDisplay,
)
from dpglm.study.privacy_report import PrivacyReport
from dpglm.study.report import html_report
from dpglm.study.results import ComparisonResults
from dpglm.study.shapes import explain_local
from dpglm.study.utility import (
    UtilityGraph,
    noise_from_public,
    simulated_accuracy,
    simulated_errors,
)

__all__ = [
    "SKOPS_TYPES", "AuditDisplay", "CoefficientDisplay", "ComparisonDisplay", "ComparisonResults",
    "OdometerDisplay", "PrivacyReport", "ScoresDisplay", "ShapeDisplay", "TradeOffDisplay",
    "UtilityGraph", "UtilityGraphDisplay", "compare", "explain_local", "html_report",
    "model_card", "noise_from_public", "register_onnx", "simulated_accuracy",
    "simulated_errors",
]  # fmt: skip
