"""Studies around a fit: comparisons, utility graphs, figures, reports and the command line."""

from dpglm.calculator import expected_accuracy, expected_errors
from dpglm.study.comparison import compare
from dpglm.study.models import SKOPS_TYPES, model_card, register_onnx
from dpglm.study.plots import plot
from dpglm.study.privacy_report import PrivacyReport
from dpglm.study.report import html_report
from dpglm.study.results import ComparisonResults
from dpglm.study.shapes import ShapeDisplay, explain_local
from dpglm.study.utility import UtilityGraph, noise_from_public

__all__ = [
    "SKOPS_TYPES", "ComparisonResults", "PrivacyReport", "ShapeDisplay", "UtilityGraph", "compare",
    "expected_accuracy", "expected_errors", "explain_local", "html_report", "model_card",
    "noise_from_public", "plot", "register_onnx",
]  # fmt: skip
