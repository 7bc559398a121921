"""Studies around a fit: comparisons, utility graphs, figures, reports and the command line."""

from dpglm.exceptions import absent
from dpglm.study.comparison import compare
from dpglm.study.plots import plot
from dpglm.study.privacy_report import PrivacyReport
from dpglm.study.shapes import ShapeDisplay, explain_local
from dpglm.study.utility import UtilityGraph, expected_accuracy, expected_errors

__all__ = [
    "PrivacyReport", "ShapeDisplay", "UtilityGraph", "compare",
    "expected_accuracy", "expected_errors", "explain_local", "plot",
]  # fmt: skip

__getattr__ = absent(__name__)
