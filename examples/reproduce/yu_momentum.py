"""Momentum and a decaying clip on a convex softmax model: the coefficients of Yu et al., swept.

The heavy ball averages noise, but it also makes every step 1 / (1 - c) times as long. The sweep of
its coefficient c = 0 .. 0.9 therefore runs twice: with the same step for all c, as published, and
with the step times (1 - c), which leaves the averaging alone. It does so at several steps, one of
them the best for plain descent. Both also run with their decaying clip. The data are scikit-learn's
digits, with public bounds [0, 16].

Run ``python examples/reproduce/yu_momentum.py``; no files are needed.
"""

import numpy as np
from _report import Report, accuracies, comparison, mean_and_error, run
from sklearn.datasets import load_digits

from dpglm import DecayingClip, DPLogisticRegression, HeavyBall
from dpglm.schedules import PublicFacts
from dpglm.study import ComparisonResults, compare

EPSILONS = [0.5, 2.0]
CLIP = 1.0
N_ITER = 100
COEFFICIENTS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
RECOMMENDED = 0.6
# Each 2.5 times the one before, as a coefficient of .6 makes it; the first is too short.
STEPS = [1.0, 2.5, 6.25]
CLIPS = {"constant clip": CLIP, "decaying clip": DecayingClip(CLIP)}
MODES = ("equal step", "step times 1 - c")
# Why a gain may fail to appear.
LENGTH = "its steps are 1/(1 - c) times as long, and a longer step does the same"
DELAY = "the noise of an iteration moves the coefficients as far in the end, only later"
SHRINKAGE = (
    "where gradients are clipped, their mean length falls to .69 (ln 2) and the noise to .71 "
    "(√½) only, and the steps get shorter"
)


def key(step: float, mode: str, clip: str, coefficient: float) -> str:
    return f"step {step:g}, {mode}, {clip}, c = {coefficient:g}"


def estimators(coefficients: list[float]) -> dict[str, DPLogisticRegression]:
    return {
        key(step, mode, clip, c): DPLogisticRegression(
            max_iter=N_ITER,
            noise_schedule="constant",
            clip_schedule=schedule,
            step_schedule=step if mode == "equal step" else step * (1 - c),
            momentum=HeavyBall(c),
            averaging=None,
            preconditioner=None,
        )
        for step in STEPS
        for mode in MODES
        for clip, schedule in CLIPS.items()
        for c in coefficients
    }


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images with pixels in [0, 16], divided by 64: their norms are then about 1."""
    X, y = load_digits(return_X_y=True)
    return X / 64, y


def noise_variance(report: Report, rng: np.random.Generator, n_draws: int) -> dict:
    """Momentum fed with unit noise: its variance after t steps against the formula."""
    times, rows, worst = (1, 2, 5, 20, 100), [], 0.0
    for c in (0.3, RECOMMENDED, 0.9):
        momentum, velocity = HeavyBall(c), np.zeros(n_draws)
        measured = {}
        for t in range(1, max(times) + 1):
            direction, velocity = momentum.direction(rng.standard_normal(n_draws), velocity, t)
            measured[t] = direction.var()
        theory = {t: (1 - c ** (2 * t)) / (1 - c**2) for t in times}
        rows.append([f"{c}", *(f"{measured[t]:.3f} / {theory[t]:.3f}" for t in times)])
        worst = max(worst, *(abs(measured[t] / theory[t] - 1) for t in times))
    report.table(
        "Variance of the direction under unit noise, measured / (1 - c^(2t))/(1 - c²)",
        ["c", *(f"t = {t}" for t in times)],
        rows,
    )
    tolerance = 5 * np.sqrt(2 / n_draws)
    report.claim(
        "variance of the noise in the direction",
        paper="(1 - c^(2t))/(1 - c²); 1.5625 for c = .6",
        ours=f"within {100 * worst:.1f} % of it for c = .3, .6, .9",
        holds=worst < tolerance,
        remark=f"{n_draws:,} draws",
    )


def decaying_clip(report: Report) -> None:
    """Shape and privacy cost of their clip, from the schedule and Gaussian composition."""
    horizon = 100
    facts = PublicFacts(1000, 10)
    clip = DecayingClip(1.0, horizon=horizon).values(4 * horizon, facts)
    spent = np.cumsum(clip**2) / horizon
    report.claim(
        "the clip decays linearly to one half at t = T",
        paper="C / min(2, 1 + t/T)",
        ours=f"{clip[horizon // 2]:.3f} C half-way, where a line has 0.75 C",
        holds=False,
        remark="their formula is a hyperbola: it falls fast at first",
    )
    n_iter = int(np.searchsorted(spent, 1 + 1e-12))
    report.claim(
        "at the noise of a constant clip the decaying one leaves budget for more iterations",
        paper="the loop goes on until the budget is spent",
        ours=f"T = {horizon} iterations cost {spent[horizon - 1]:.1%}; the budget lasts for "
        f"{n_iter}",
        holds=n_iter > horizon,
        remark="exact composition; here the noise is lowered instead, at equal T",
    )


def sweep(report: Report, accuracy: dict, epsilon: float, coefficients: list[float]) -> None:
    """Add the accuracies at one epsilon, and the claims about them."""
    mean = {name: values.mean() for name, values in accuracy.items()}
    report.table(
        f"Accuracy in percent, epsilon {epsilon:g}",
        ["c", *(f"{c:g}" for c in coefficients)],
        (
            [
                f"step {step:g}, {mode}, {clip}",
                *(f"{mean[key(step, mode, clip, c)]:.1f}" for c in coefficients),
            ]
            for step in STEPS
            for mode in MODES
            for clip in CLIPS
        ),
    )
    constant, decaying = CLIPS
    equal, rescaled = MODES
    short, c = STEPS[0], RECOMMENDED

    def at_best_step(clip: str, c: float) -> str:
        return max((key(step, equal, clip, c) for step in STEPS), key=mean.get)

    plain = key(short, equal, constant, 0.0), at_best_step(constant, 0.0)
    decayed, both = key(short, equal, decaying, 0.0), key(short, equal, decaying, c)
    for name, better, worse, why in (
        (f"c = {c}, equal step {short:g}", key(short, equal, constant, c), plain[0], LENGTH),
        (f"c = {c}, step {short:g} (1 - c)", key(short, rescaled, constant, c), plain[0], DELAY),
        (f"decaying clip, equal step {short:g}", decayed, plain[0], SHRINKAGE),
        (f"both together, equal step {short:g}", both, plain[0], SHRINKAGE),
        (f"c = {c}, each with its best step", at_best_step(constant, c), plain[1], LENGTH),
        (
            "decaying clip, each with its best step",
            at_best_step(decaying, 0.0),
            plain[1],
            SHRINKAGE,
        ),
        ("both together, each with its best step", at_best_step(decaying, c), plain[1], SHRINKAGE),
    ):
        ours, holds, remark = comparison(accuracy[better] - accuracy[worse], " points")
        name = f"epsilon {epsilon:g}: {name}"
        report.claim(name, paper="more accurate", ours=ours, holds=holds, remark=remark, why=why)

    best = [
        max(coefficients, key=lambda c, step=step: mean[key(step, equal, constant, c)])
        for step in STEPS
    ]
    report.claim(
        f"epsilon {epsilon:g}: the best coefficient",
        paper="0.6 to 0.7",
        ours=", ".join(f"{c:g} for step {s:g}" for c, s in zip(best, STEPS, strict=True)),
        holds=all(0.55 < c < 0.75 for c in best),
        remark="it depends on the step, which momentum makes 1/(1 - c) times as long",
    )
    ranges = [np.ptp([mean[key(short, mode, constant, c)] for c in coefficients]) for mode in MODES]
    report.note(
        f"At epsilon {epsilon:g} and step {short:g} the choice of c moves the accuracy by "
        f"{ranges[0]:.1f} points with equal steps and by {ranges[1]:.1f} with steps times 1 - c."
    )


def figure(results: ComparisonResults, epsilons, coefficients, plt):
    size = 5 * len(epsilons), 7
    fig, grid = plt.subplots(
        2, len(epsilons), figsize=size, layout="constrained", sharey="col", squeeze=False
    )
    for column, epsilon in zip(grid.T, epsilons, strict=True):
        accuracy = accuracies(results, epsilon)
        for axes, clip in zip(column, CLIPS, strict=True):
            for color, step in enumerate(STEPS):
                for mode, style in zip(MODES, ("o-", "o--"), strict=True):
                    folds = [accuracy[key(step, mode, clip, c)] for c in coefficients]
                    mean, error = np.transpose([mean_and_error(values) for values in folds])
                    label = f"step {step:g}{' (1 - c)' if mode == MODES[1] else ''}"
                    axes.plot(coefficients, mean, style, ms=3, color=f"C{color}", label=label)
                    axes.fill_between(
                        coefficients, mean - error, mean + error, color=f"C{color}", alpha=0.1, lw=0
                    )
            axes.set_title(f"epsilon = {epsilon:g}, {clip}", fontsize=10)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        column[1].set_xlabel("coefficient c of the heavy ball")
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy in percent, test folds")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return fig


def reproduce(arguments) -> Report:
    rng = np.random.default_rng(arguments.seed)
    epsilons, coefficients, n_splits = EPSILONS, COEFFICIENTS, 5
    n_repeats, n_draws = arguments.repeats, 200_000
    if arguments.quick:
        epsilons, coefficients, n_splits, n_repeats = [2.0], [0.0, 0.6, 0.9], 2, 1
        n_draws = 20_000
    results = compare(
        {"digits": digits()},
        estimators(coefficients),
        epsilons=epsilons,
        delta=1e-5,
        n_splits=n_splits,
        n_repeats=n_repeats,
        seed=arguments.seed,
        n_jobs=arguments.jobs,
        progress=not arguments.quick,
    )
    report = Report(
        "Coefficients of momentum and the decaying clip: softmax regression on digits",
        "Yu et al. (2018), improved gradient perturbation. Gains in points of accuracy on the "
        "same folds ± standard error; what is within two of them is no difference. The claims are "
        f"tested at step {STEPS[0]:g}, too short for plain descent, and at the best step of each.",
    )
    noise_variance(report, rng, n_draws)
    decaying_clip(report)
    for epsilon in epsilons:
        sweep(report, accuracies(results, epsilon), epsilon, coefficients)
    report.drawing = lambda plt: figure(results, epsilons, coefficients, plt)
    return report


def add_arguments(parser) -> None:
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv, add_arguments)


if __name__ == "__main__":
    main()
