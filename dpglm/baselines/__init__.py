"""The published competitors, as correct estimators with ledgers."""

from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.objective_perturbation import ObjectivePerturbation
from dpglm.baselines.perturbation import DescentOutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.exceptions import absent

__all__ = [
    "DescentOutputPerturbation", "MajorityClassifier", "ObjectivePerturbation",
    "PrivGene", "SGDAdvancedComposition", "SGDMomentsAccountant",
]  # fmt: skip

__getattr__ = absent(__name__)
