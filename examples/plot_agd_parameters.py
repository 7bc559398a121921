"""How the parameters of DP-AGD matter
====================================

Figure 1 of Lee & Kifer (2018): training loss and test accuracy of DP-AGD as (a) the number of
splits of the budget, (b) the growth of the budget gamma, (c) the clip of the gradients and (d) the
clip of the losses vary. Dashed: the other parameters at the paper's constants, with valid noise.
Solid: the same with the exponential mechanism and a fifth of the budget for it. With ``--adult``
the data are Adult, otherwise an artificial census.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.model_selection import KFold

from dpglm import DPAGDClassifier
from dpglm.comparison import encoded
from dpglm.datasets import fetch_adult, make_census

PANELS = {
    "(a) splits": ("n_splits", [5, 10, 20, 40, 60, 80, 100]),
    "(b) gamma": ("budget_growth", [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]),
    "(c) gradient clip": ("clip_schedule", [0.5, 1.0, 2.0, 3.0, 4.0, 6.0]),
    "(d) loss clip": ("loss_clip", [0.5, 1.0, 2.0, 3.0, 4.0, 6.0]),
}
STYLES = {"as published, valid noise": "--", "exponential mechanism": "-"}


def estimator(style, epsilon, **changes):
    """Return the published algorithm, or the same with the budget well spent."""
    better = {"selection": "exponential", "selection_share": 0.2, "accountant": "auto"}
    better = {} if style.startswith("as published") else better
    return DPAGDClassifier.as_published(epsilon=epsilon, classes=[0, 1], **{**better, **changes})


def scores(X, y, model, repeats):
    """Return the mean logistic loss on the training folds and accuracy on the test folds."""
    loss, accuracy = [], []
    for _ in range(repeats):
        for train, test in KFold(5, shuffle=True, random_state=0).split(X):
            model.fit(X[train], y[train])
            margin = np.where(y[train] == 1, 1, -1) * model.decision_function(X[train])
            loss.append(np.logaddexp(0, -margin).mean())
            accuracy.append(model.score(X[test], y[test]))
    return np.mean(loss), np.mean(accuracy)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adult", action="store_true", help="Adult instead of a census")
    parser.add_argument("--data-home", help="folder with the files of Adult")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.4, 1.6])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("agd_parameters.png"))
    arguments, _ = parser.parse_known_args()

    if arguments.adult:
        X, y = encoded(fetch_adult(data_home=arguments.data_home))
        y = (y == np.unique(y)[1]).astype(int)
    else:
        X, y = make_census(5000, random_state=0)

    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), layout="constrained", sharey="row")
    for column, (title, (name, values)) in zip(axes.T, PANELS.items(), strict=True):
        for color, epsilon in enumerate(arguments.epsilon):
            for style, line in STYLES.items():
                found = [
                    scores(X, y, estimator(style, epsilon, **{name: value}), arguments.repeats)
                    for value in values
                ]
                for panel, measured in zip(column, np.transpose(found), strict=True):
                    panel.plot(
                        values,
                        measured,
                        line,
                        color=f"C{color}",
                        marker=".",
                        label=f"epsilon {epsilon:g}, {style}",
                    )
                rows = (f"{v:g}: {a:.3f}/{b:.3f}" for v, (a, b) in zip(values, found, strict=True))
                print(f"{title}, epsilon {epsilon:g}, {style}:", "  ".join(rows), flush=True)
        column[0].set_title(title)
        column[1].set_xlabel(name)
    axes[0, 0].set_ylabel("logistic loss, training fold")
    axes[0, 0].set_ylim(top=min(axes[0, 0].get_ylim()[1], 1.0))
    axes[1, 0].set_ylabel("accuracy, test fold")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(arguments.output, dpi=150)


if __name__ == "__main__":
    main()
