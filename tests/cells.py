"""Records of a comparison that nobody ran."""

from dpglm.study.comparison import CELL


def cell_record(estimator="svm", epsilon=1.0, fold=0, dataset="toy", **measured):
    """Return what a fit left, on 1,234 rows and in two folds; some of it may be given."""
    delta = None if epsilon is None else 1e-6
    named = (dataset, 1234, 3, "4f2a", estimator, "Model()", epsilon, delta, 2, 7, 0, fold)
    scores = {"accuracy": 0.7, "auc": 0.8, "training_loss": 0.4, "test_loss": 0.5}
    outcome = {"loss": "logistic", "fit_seconds": 1.0, "ledger_epsilon": epsilon, "warnings": []}
    cell = dict(zip(CELL, named, strict=True))
    return {**cell, **scores, **outcome, **measured}
