"""The base of the classifiers: linear models with a label set, and weights of classes."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dpglm.checks import check_labels, check_number
from dpglm.estimators.base import PrivateLinearModel
from dpglm.estimators.callbacks import with_callbacks
from dpglm.estimators.defaults import COUNT_FRACTION, LEAST_COUNT_NOISE
from dpglm.estimators.inputs import LARGEST_WEIGHT, Table
from dpglm.estimators.plan import LOGISTIC_SLOPE, Plan, budget_too_small, label_counts_of
from dpglm.estimators.prediction import LinearPredictions
from dpglm.exceptions import UtilityWarning
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.composition import composed_epsilon
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.vault import Vault
from dpglm.schedules import PublicMetadata
from dpglm.schema.values import composed


class PrivateLinearClassifier(LinearPredictions, PrivateLinearModel):
    """Base of the linear classifiers, with the parameters ``classes`` and ``class_weight``."""

    # Whether a fit with weights counts labels; None for "balanced" only.
    _counts_weights: ClassVar[bool | None] = None

    def plan(self, n_samples: int, n_features: int, n_classes: int = 2) -> Plan:
        """Return the releases of a fit and their cost, without any data.

        A fit takes a public bound on row norms from rows of a schema, if ``max_row_norm`` is None,
        and then releases no histogram. Give ``max_row_norm`` for the plan of such a fit. A fit with
        ``sample_weight`` counts labels first, as the plan does with a ``class_weight``.

        Parameters
        ----------
        n_samples : int
            Number of records, of groups if ``max_contributions`` is given. Under
            ``"add_or_remove_one"`` it is ignored for ``n_samples_estimate``.
        n_features : int
            Number of columns of X.
        n_classes : int, default=2

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If a parameter is out of range, or the budget is too small for the schedule.
        """
        return self._planned(n_samples, n_features, n_classes)

    @with_callbacks
    def fit(self, X: Table, y: ArrayLike | None = None) -> Self:
        """Fit with the guarantee that ``privacy_`` states.

        Input, errors and warnings are those of `DPLogisticRegression.fit`.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows
        y : array-like of shape (n_samples,), default=None

        Returns
        -------
        self
        """
        return self._fit(X, y)

    def _plan_for(self, budget: PrivacyBudget, metadata: PublicMetadata, data: Any) -> Plan:
        if self.class_weight is None and (data is None or "row_weights" not in data.options):
            return self._plan(budget, metadata)
        return plan_with_weights(self, budget, metadata, data)

    def _settled(self, vault: Vault, plan: Plan, data: Any) -> Plan:
        return weigh(vault, plan, self.class_weight, data)


class WeightedClassifier(PrivateLinearClassifier):
    """A classifier that is fitted with weights of rows, or with groups of rows.

    It has the parameters ``max_weight`` and ``max_contributions``.
    """

    @with_callbacks
    def fit(
        self,
        X: Table,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit with the guarantee that ``privacy_`` states.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows
            Blocks are read again in every pass over the data, and their rows are never all in
            memory. Blocks are a Zarr array, HDF5 dataset, `numpy.memmap` of more than 1 GiB, dask
            array or data frame, any re-iterable of ``(X, y)``, or a `Source`.
        y : array-like of shape (n_samples,), default=None
            Class labels: an array, or with dask a dask array or series. ``None`` if X is a
            `Source` or yields ``(X, y)`` blocks.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, 0 or above, each made from its own record and public facts. They are divided by
            ``max_weight``, and by their noisy mean. Gradients and rows of the second moment are
            weighted and then clipped, so weights do not change the sensitivity. Not for blocks of
            rows.
        groups : array-like of shape (n_samples,), default=None
            The person of each row. The first ``max_contributions`` rows of a group count, and are
            clipped together. Not for blocks of rows.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For bad parameters or data, before any noise is drawn; for blocks that change between
            two passes, when they do. If a fit fails after its first draw of noise, the estimator
            stays unfitted. The exception then has ``privacy_ledger``, the cost of the full plan.
        OSError
            If a block cannot be read; nothing is released from a part of the blocks.

        Warns
        -----
        PrivacyWarning
            If `seeded_noise` makes the noise reproducible, or ``delta`` exceeds one over the
            number of records.
        UtilityWarning
            Before any release: of too much noise or clipping, of intervals that cannot be expected,
            and of 65,536 coefficients or more. From releases alone: of columns below the noise
            level, large numbers that differ by little, codes among numbers, and small weights.

        Examples
        --------
        >>> import numpy as np
        >>> from dpglm import DPLogisticRegression
        >>> from dpglm.datasets import make_census
        >>> X, y = make_census(4000, random_state=0)
        >>> persons = np.arange(4000) // 2
        >>> model = DPLogisticRegression(max_contributions=2, classes=[0, 1])
        >>> print(model.fit(X, y, groups=persons).privacy_.privacy_unit)
        group
        """
        return self._fit(X, y, sample_weight, groups)


def plan_with_weights(
    estimator: Any, budget: PrivacyBudget, metadata: PublicMetadata, data: Any = None
) -> Any:
    """Return the plan of a fit with weights, `data` its input, if there is one.

    Losses are divided by the largest weight, and the penalty with them.
    """
    given = estimator.class_weight
    weights = resolved_class_weight(given, None if data is None else data.classes)
    if data is None and len(weights) < max(2, metadata.n_outputs):
        weights = np.append(weights, 1.0)  # of classes without a weight
    largest = weights.max()
    if data is not None and "row_weights" in data.options:
        largest *= estimator.max_weight
        if getattr(estimator, "inference_fraction", 0.0):
            raise ValueError("sample_weight needs inference_fraction=0.")
    metadata = replace(metadata, alpha=metadata.alpha / largest)
    needed = estimator._counts_weights
    if not (isinstance(given, str) if needed is None else needed):
        return estimator._plan(budget, metadata)
    scores = np.zeros((1, metadata.n_outputs)[: 1 + (metadata.n_outputs > 1)])
    loss = estimator._loss(max(2, metadata.n_outputs))
    slope = float(np.linalg.norm(loss.derivative(scores, np.ones(1, dtype=int))))
    metadata = replace(metadata, count_fraction=COUNT_FRACTION, slope=slope / LOGISTIC_SLOPE)
    plan = estimator._plan(budget, metadata)
    if plan.counts:
        return plan
    (count,), rest = label_counts_of(budget.mu, metadata), budget
    if budget.epsilon < math.inf:
        left = budget.mu * math.sqrt(1 - COUNT_FRACTION)
        rest = replace(budget, epsilon=gdp_epsilon(left, budget.delta))
    plan = estimator._plan(rest, metadata)
    # Releases that are not Gaussian leave less to a count than its fraction of mu^2.
    while composed_epsilon(((count.event, 1), *plan.ledger.events), budget.delta) > budget.epsilon:
        count = replace(count, noise_multiplier=1.1 * count.noise_multiplier)
    events = ((count.event, 1), *plan.ledger.events)
    return replace(plan, budget=budget, counts=(count,), ledger=replace(plan.ledger, events=events))


def weigh(vault: Any, plan: Any, class_weight: Any, data: Any) -> Any:
    """Give the classes their weights, over the largest, and return the plan for them.

    Each count of a plan is raised to twice the noise at least, which bounds weights of classes.
    """
    counts, metadata = None, plan.metadata
    if plan.counts:
        noisy = vault.label_counts(plan.counts[0].noise_multiplier)
        least = max(LEAST_COUNT_NOISE * vault.log[-1].noise_scale, 2.0**-20)
        counts = np.maximum(noisy, least)
    weights = resolved_class_weight(class_weight, data.classes, counts)
    largest = weights.max()
    vault.weigh_classes(weights / largest)
    if counts is None:
        return plan
    mean, of_rows = np.minimum(
        1.0, [counts @ weights / largest, counts.sum()] / np.float64(metadata.n_samples)
    ).tolist()
    # The largest weight of a dict was known before.
    divisor = mean * (float(largest) if isinstance(class_weight, str) else 1.0)
    known = {"mean_weight": mean, "alpha": metadata.alpha / divisor}
    if "row_weights" in data.options:
        known["mean_row_weight"] = of_rows
        # As released: counts that were raised to the noise are never too small.
        shown = max(noisy.sum(), 0.0) / metadata.n_samples
        if not plan._too_small and budget_too_small(plan.n_mu * shown, metadata.n_features):
            text = (
                f"This fit has probably learned little: weights over max_weight are {shown:.2g} on "
                "average, as released. Set max_weight to about the largest sample_weight."
            )
            warnings.warn(text, UtilityWarning, stacklevel=7)
    return plan.renewed(**known)


def resolved_class_weight(
    class_weight: Any, classes: np.ndarray | None, counts: np.ndarray | None = None
) -> np.ndarray:
    """Return the weight of each class, 1 where none is given; without classes those that are given.

    ``"balanced"`` is inverse to `counts`, as in scikit-learn, and ones before there are counts.
    """
    balanced = isinstance(class_weight, str) and class_weight == "balanced"
    if balanced and counts is not None:
        return counts.sum() / (counts.size * counts)
    if balanced or class_weight is None:
        return np.ones(2 if classes is None else len(classes))
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"class_weight={class_weight!r} must be None, 'balanced', or a dict of label to weight."
        )
    labels = check_labels("class_weight", [*class_weight], "name labels that occur").tolist()
    listed = labels if classes is None else classes.tolist()
    known = dict.fromkeys(map(composed, listed))
    for label, weight in zip(labels, class_weight.values(), strict=True):
        if known.get(composed(label), 0.0) is not None:
            raise ValueError(
                f"class_weight names the label {label!r}, which is not among the classes {listed}, "
                "or names it twice."
            )
        check_number(f"class_weight[{label!r}]", weight, above=0, at_most=LARGEST_WEIGHT)
        known[composed(label)] = float(weight)
    return np.array([1.0 if weight is None else weight for weight in known.values()])
