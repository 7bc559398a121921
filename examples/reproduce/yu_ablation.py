"""Momentum and a decaying clip, alone and together: do the gains of Yu et al. (2021) reproduce?

Their amended noisy SGD adds to plain noisy SGD a heavy ball with coefficient .6 and a clip that
decays to half its first value. Here all four combinations run on Adult with the same budget,
number of iterations and sampling rate, at several step sizes. A heavy ball also makes every step
1 / (1 - .6) = 2.5 times as long, and a smaller clip makes it shorter: whether it is these two that
help, or the length of the steps, shows when each combination has its own best step.

Run ``python examples/reproduce/yu_ablation.py``; ``--quick`` takes the artificial census instead,
which needs no files. Adult comes from ``--data-home`` or the folder in ``DPGLM_DATA``, else from
OpenML.
"""

from _report import Report, accuracies, comparison, run
from yu_momentum import LENGTH, SHRINKAGE

from dpglm import DecayingClip, DPLogisticRegression, HeavyBall
from dpglm.datasets import fetch_adult, make_census
from dpglm.study import ComparisonResults
from dpglm.study.comparison import compare, encoded

EPSILONS = [0.5, 2.0]
CLIP = 2.0
# Each 2.5 times the one before, as momentum lengthens steps.
STEPS = [0.4, 1.0, 2.5, 6.25]
COMBINATIONS = {
    "plain": {"momentum": None, "clip_schedule": CLIP},
    "momentum": {"momentum": HeavyBall(0.6), "clip_schedule": CLIP},
    "decaying clip": {"momentum": None, "clip_schedule": DecayingClip(CLIP)},
    "both": {"momentum": HeavyBall(0.6), "clip_schedule": DecayingClip(CLIP)},
}
# Each claim: this is more accurate than that, and what may prevent it.
CLAIMS = {
    "momentum helps": ("momentum", "plain", LENGTH),
    "a decaying clip helps": ("decaying clip", "plain", SHRINKAGE),
    "both together help": ("both", "plain", SHRINKAGE),
    "a decaying clip helps with momentum": ("both", "momentum", SHRINKAGE),
}


def estimators(steps: list[float], max_iter: int) -> dict[str, DPLogisticRegression]:
    return {
        f"{name}, step {step:g}": DPLogisticRegression(
            sampling_rate=0.05,
            max_iter=max_iter,
            noise_schedule="constant",
            step_schedule=step,
            averaging=None,
            preconditioner=None,
            **parameters,
        )
        for name, parameters in COMBINATIONS.items()
        for step in steps
    }


def report_claims(
    report: Report, results: ComparisonResults, epsilons: list[float], steps: list[float]
) -> None:
    """Add the claims, at equal steps and at the best step of each combination."""
    for epsilon in epsilons:
        accuracy = accuracies(results, epsilon)
        best = {
            name: max(steps, key=lambda s, n=name: accuracy[f"{n}, step {s:g}"].mean())
            for name in COMBINATIONS
        }
        for title, step_of in (
            (f"every step {steps[1]:g}", dict.fromkeys(COMBINATIONS, steps[1])),
            ("each with its best step", best),
        ):
            for claim, (*pair, why) in CLAIMS.items():
                better, worse = (accuracy[f"{name}, step {step_of[name]:g}"] for name in pair)
                ours, holds, remark = comparison(better - worse, " points")
                claim = f"epsilon {epsilon:g}: {claim}, {title}"
                report.claim(
                    claim, paper="more accurate", ours=ours, holds=holds, remark=remark, why=why
                )
        report.table(
            f"Accuracy in percent, epsilon {epsilon:g}",
            ["", *(f"step {step:g}" for step in steps)],
            (
                [name, *(f"{accuracy[f'{name}, step {step:g}'].mean():.2f}" for step in steps)]
                for name in COMBINATIONS
            ),
        )


def reproduce(arguments) -> Report:
    if arguments.quick:
        name, data = "the artificial census", make_census(4000, random_state=0)
        epsilons, steps, max_iter, n_splits, n_repeats = EPSILONS[1:], STEPS[:2], 50, 3, 1
    else:
        name, data = "Adult", encoded(fetch_adult(arguments.data_home))
        epsilons, steps, max_iter, n_splits = EPSILONS, STEPS, 300, 5
        n_repeats = arguments.repeats
    results = compare(
        {name: data},
        estimators(steps, max_iter),
        epsilons=epsilons,
        delta=1e-6,
        n_splits=n_splits,
        n_repeats=n_repeats,
        seed=arguments.seed,
        n_jobs=arguments.jobs,
        progress=not arguments.quick,
    )
    report = Report(
        f"Momentum and a decaying clip in noisy SGD on {name}",
        "Yu et al. (2021), amended noisy SGD: ablation. Gains in points of accuracy on the same "
        "folds ± standard error; what is within two of them is no difference.",
    )
    report_claims(report, results, epsilons, steps)
    return report


def add_arguments(parser) -> None:
    parser.add_argument("--data-home", help="folder with the files of Adult")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv, add_arguments, has_figure=False)


if __name__ == "__main__":
    main()
