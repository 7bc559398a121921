"""Choose a run before touching the data
=====================================

How many iterations, which clip and step, all records at a time or batches? A utility graph answers
by simulation on public rows, with the noise that the private fit will draw, and recommends one
setting. No privacy is spent on the choice: the private records are read once, by the fit.

Here the public rows are an artificial table made from the schema of the private one.
"""

import argparse
from pathlib import Path

from dpglm import DPLogisticRegression
from dpglm.datasets import sample_from_schema
from dpglm.schema import load_schema
from dpglm.study import PlanDisplay, UtilityGraph

N_PRIVATE = 20_000  # public, or a public guess

GRID = [
    {
        "max_iter": [30, 100, 300],
        "clip_schedule": [0.25, 0.5, 1.0],
        "step_schedule": [0.3, 1.0, 3.0],
        "sampling_rate": [1.0],
    },
    {
        "max_iter": [100, 300],
        "clip_schedule": [0.5, 1.0],
        "step_schedule": [0.3, 1.0],
        "sampling_rate": [0.1],
    },
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("utility_graph.png"))
    arguments, _ = parser.parse_known_args()

    # %%
    # The table has the columns, bounds and categories of the schema; a tenth of its labels are
    # "yes", which is what the bank would say of such campaigns beforehand.
    schema = load_schema("bank")
    X, y = sample_from_schema(schema, 8000, class_shares=[0.9, 0.1], random_state=0)

    # %%
    # Each setting is fitted a few times at the budget that the private fit will have.
    estimator = DPLogisticRegression(
        epsilon=arguments.epsilon, delta=1e-6, preconditioner="full", classes=schema.classes
    )
    graph = UtilityGraph(
        estimator, GRID, n_samples=N_PRIVATE, n_repeats=arguments.repeats, progress=True
    )
    results = graph.run(X, y)
    print(results)
    results.plot(by="sampling_rate").figure_.savefig(arguments.output, dpi=150)

    # %%
    # The recommended estimator is ready for the private records, and says what it will do to them.
    model = results.recommended_estimator()
    plan = model.plan(N_PRIVATE, X.shape[1])
    print(plan)
    figure = PlanDisplay.from_plan(plan).plot().figure_
    figure.savefig(arguments.output.with_stem(arguments.output.stem + "_plan"), dpi=150)


if __name__ == "__main__":
    main()
