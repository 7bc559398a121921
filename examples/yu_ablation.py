"""Momentum and a decaying clip, alone and together: do the gains of Yu et al. (2021) reproduce?

Their amended noisy SGD adds to plain noisy SGD a heavy ball with coefficient .6 and a clip that
decays to half its first value. Here all four combinations run on Adult with the same budget,
number of iterations and sampling rate, at several step sizes. A heavy ball also makes every step
1 / (1 - .6) = 2.5 times as long, and a smaller clip makes it shorter: whether it is these two that
help, or the length of the steps, shows when each combination has its own best step.

Run ``python examples/yu_ablation.py``; ``--quick`` takes the artificial census instead, which needs
no files. Adult comes from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

import argparse

import numpy as np

from dpglm import DecayingClip, DPLogisticRegression, HeavyBall
from dpglm.comparison import compare, encoded
from dpglm.datasets import fetch_adult, make_census
from dpglm.results import ComparisonResults

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
ESTIMATORS = {
    f"{name}, step {step:g}": DPLogisticRegression(
        sampling_rate=0.05,
        max_iter=300,
        noise_schedule="constant",
        step_schedule=step,
        averaging=None,
        preconditioner=None,
        **parameters,
    )
    for name, parameters in COMBINATIONS.items()
    for step in STEPS
}
# Each claim: this is more accurate than that.
CLAIMS = {
    "momentum helps": ("momentum", "plain"),
    "a decaying clip helps": ("decaying clip", "plain"),
    "both together help": ("both", "plain"),
    "a decaying clip helps with momentum": ("both", "momentum"),
}


def accuracies(results: ComparisonResults, epsilon: float) -> dict[str, np.ndarray]:
    """Accuracy of every estimator on each fold, in points."""
    folds: dict[str, dict[tuple[int, int], float]] = {}
    for record in results.records:
        if record["epsilon"] == epsilon:
            fold = record["repeat"], record["fold"]
            folds.setdefault(record["estimator"], {})[fold] = 100 * record["accuracy"]
    return {name: np.array([of[fold] for fold in sorted(of)]) for name, of in folds.items()}


def verdict(gain: np.ndarray) -> str:
    """Two standard errors of the gain on the same folds decide."""
    mean, error = gain.mean(), gain.std(ddof=1) / np.sqrt(len(gain))
    if abs(mean) <= 2 * error:
        word = "does not reproduce"
    else:
        word = "reproduces" if mean > 0 else "the opposite holds"
    return f"{mean:+.2f} ±{error:.2f}  {word}"


def report(results: ComparisonResults) -> str:
    """Return the claims, at equal steps and at the best step of each combination."""
    lines = ["Claims, by the gain in points of accuracy on the same folds ± standard error"]
    for epsilon in EPSILONS:
        accuracy = accuracies(results, epsilon)
        best = {
            name: max(STEPS, key=lambda s, n=name: accuracy[f"{n}, step {s:g}"].mean())
            for name in COMBINATIONS
        }
        chosen = ", ".join(f"{name} {step:g}" for name, step in best.items())
        for title, step_of in (
            (f"every step {STEPS[1]:g}", dict.fromkeys(COMBINATIONS, STEPS[1])),
            (f"the best step of each: {chosen}", best),
        ):
            lines += ["", f"  epsilon {epsilon:g}, {title}"]
            for claim, pair in CLAIMS.items():
                better, worse = (accuracy[f"{name}, step {step_of[name]:g}"] for name in pair)
                lines.append(f"    {claim:<37}{verdict(better - worse)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="artificial data, one repeat")
    parser.add_argument("--data-home", help="folder with the files of Adult")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    arguments = parser.parse_args()
    if arguments.quick:
        name, data = "census", make_census(20_000, random_state=0)
    else:
        name, data = "adult", encoded(fetch_adult(arguments.data_home))
    results = compare(
        {name: data},
        ESTIMATORS,
        epsilons=EPSILONS,
        delta=1e-6,
        n_repeats=1 if arguments.quick else arguments.repeats,
        n_jobs=arguments.jobs,
        progress=True,
    )
    print(results.table(["accuracy"]))
    print(f"\n{report(results)}")


if __name__ == "__main__":
    main()
