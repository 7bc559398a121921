"""Momentum and a falling clip on a convex softmax model: the experiments of Yu, Zhang & Chen.

They train a softmax on MNIST by DP-SGD, with momentum, with a clip that falls while the noise stays
as it is, and with both; what the smaller clip saves of the budget buys more steps. Here
scikit-learn's digits stand in for MNIST, with the clip as far above the first gradients as theirs,
and the steps about as long. The coefficient c of momentum is swept with the same step for all c, as
published, and once with the step times (1 - c), which leaves the averaging alone. Inside of a run,
and with the batches and neighbours of Appendix B, three coefficients and the linear fall.

Run ``python examples/reproduce/yu_momentum.py``; no files are needed.
"""

import numpy as np
from _report import Report, accuracies, comparison, mean_and_error, printed, run
from sklearn.datasets import load_digits

from dpglm import DPLogisticRegression, PrivacyCalculator
from dpglm.schedules import DecayingClip, ExponentialDecay, HeavyBall, Polynomial, PublicMetadata
from dpglm.study import compare

EPSILONS = [0.5, 2.0]
THEIRS = 2.0  # of Figure 2
DELTA = 1e-5
# The first gradients have norms of 1.32; those of MNIST in [0, 1] have about 8.8, for C = 12.
CLIP = 1.8
LOW_CLIP = 1.0
N_ITER = 100
COEFFICIENTS = [0.0, 0.3, 0.5, 0.6, 0.7, 0.9]
RECOMMENDED = 0.6
# Their learning rate of .02, for rows that are about nine times as long, is between the two.
STEPS = [1.0, 2.5]
MODES = ("equal step", "step times 1 - c")
FALLING = {
    "clip falls along a line": Polynomial(CLIP, CLIP / 2, horizon=N_ITER),
    "clip falls as in Eq. (6)": DecayingClip(CLIP, horizon=N_ITER),
}
LINE, HYPERBOLA = FALLING
STAND_IN = "digits stand in for MNIST"
# Where runs are looked at, and the part of the records in a batch: 144, where theirs has 600.
TIMES = [5, 10, 25, 50, N_ITER]
BATCH = 0.1


def key(step: float, clip: str, coefficient: float, mode: str = MODES[0]) -> str:
    return f"step {step:g}, {mode}, {clip}, c = {coefficient:g}"


def estimators(
    epsilon: float, steps, coefficients, delta=DELTA, relation="zero_out", rate=1.0, n_iter=N_ITER
) -> dict[str, DPLogisticRegression]:
    """Constant clips for so many iterations; falling ones for as many as the same noise buys."""
    noise = PrivacyCalculator(relation).noise_multiplier(
        epsilon=epsilon, delta=delta, n_iter=n_iter, sampling_rate=rate
    )
    constant = {"max_iter": n_iter, "clip_schedule": CLIP}
    runs = {"constant clip": constant, "low clip": constant | {"clip_schedule": LOW_CLIP}}
    for name, clip in FALLING.items():
        runs[name] = {"max_iter": "budget", "noise_multiplier": noise, "clip_schedule": clip}

    def model(step: float, c: float, mode: str, run: dict) -> DPLogisticRegression:
        return DPLogisticRegression(
            neighboring_relation=relation,
            sampling_rate=rate,
            noise_schedule="constant",
            step_schedule=step if mode == MODES[0] else step * (1 - c),
            momentum=HeavyBall(c),
            averaging=None,
            preconditioner=None,
            **run,
        )

    swept = {
        key(step, clip, c): model(step, c, MODES[0], runs[clip])
        for step in steps
        for clip in runs
        for c in (coefficients if clip == "constant clip" else (0.0, RECOMMENDED))
    }
    rescaled = {
        key(steps[-1], "constant clip", c, MODES[1]): model(steps[-1], c, MODES[1], constant)
        for c in coefficients
    }
    return swept | rescaled


def shown(values: np.ndarray) -> str:
    """Return mean and error as text."""
    return "{:.1f} ±{:.1f}".format(*mean_and_error(values))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images with pixels in [0, 16], divided by 64: their norms are then about 1."""
    X, y = load_digits(return_X_y=True)
    return X / 64, y


def noise_variance(report: Report, rng: np.random.Generator, n_draws: int) -> None:
    """Momentum fed with unit noise: its variance after t steps against the formula."""
    times, rows, worst, at_end = (1, 2, 5, 20, 100), [], 0.0, {}
    for c in (0.3, RECOMMENDED, 0.9):
        momentum, velocity = HeavyBall(c), np.zeros(n_draws)
        measured = {}
        for t in range(1, max(times) + 1):
            direction, velocity = momentum.direction(rng.standard_normal(n_draws), velocity, t)
            measured[t] = direction.var()
        theory = {t: (1 - c ** (2 * t)) / (1 - c**2) for t in times}
        rows.append([f"{c}", *(f"{measured[t]:.3f} / {theory[t]:.3f}" for t in times)])
        worst = max(worst, *(abs(measured[t] / theory[t] - 1) for t in times))
        at_end[c] = measured[max(times)]
    report.table(
        "Variance of the direction under unit noise, measured / (1 - c^(2t))/(1 - c²)",
        ["c", *(f"t = {t}" for t in times)],
        rows,
    )
    report.claim(
        "variance of the noise in the direction",
        paper=printed("yu.variance"),
        ours=f"within {100 * worst:.1f} % of it for c = 0.3, 0.6, 0.9",
        holds=worst < 5 * np.sqrt(2 / n_draws),
        main=True,
        remark=f"{n_draws:,} draws",
    )
    report.claim(
        "variance at c = 0.9, in that of a gradient's noise",
        paper=printed("yu.variance_at_0.9"),
        ours=f"{at_end[0.9]:.2f}",
        holds=abs(at_end[0.9] - 5) < 0.5,
    )


def falling_clip(report: Report, quick: bool) -> None:
    """Shape and privacy cost of their clip, from the schedule and the plan."""
    clip = DecayingClip(1.0, horizon=N_ITER).values(N_ITER + 1, PublicMetadata(1000, 10))
    report.slip(
        "Eq. (6): the clip falls linearly to one half",
        paper=printed("yu.clip"),
        ours=f"{clip[N_ITER]:.1f} C at t = T; {clip[N_ITER // 2]:.3f} C half-way, where a line has "
        "0.75 C",
        wrong=abs(clip[N_ITER // 2] - 0.75) > 0.01,
        remark="to one half, but along a hyperbola, which falls fast at first; the experiment of "
        "Section 3 has a line",
        main=True,
    )
    plans = {
        name: estimators(EPSILONS[-1], STEPS, [])[key(STEPS[0], name, 0.0)]
        .set_params(epsilon=EPSILONS[-1], delta=DELTA)
        .plan(1437, 64, 10)
        for name in FALLING
    }
    spent = {n: np.square(p.clip[:N_ITER] / CLIP).mean() for n, p in plans.items()}
    report.claim(
        "the same noise leaves budget for more steps",
        paper=printed("yu.loop"),
        ours=f"T = {N_ITER} iterations cost {spent[HYPERBOLA]:.1%} with Eq. (6) and "
        f"{spent[LINE]:.1%} along the line; the budget lasts for {plans[HYPERBOLA].n_iter} and "
        f"{plans[LINE].n_iter}",
        holds=min(plan.n_iter for plan in plans.values()) > N_ITER,
        main=True,
        remark="exact composition, all records in each iteration; with batches of 1 %, as in the "
        "paper, see the table below",
    )
    if not quick:
        at_their_constants(report)


def at_their_constants(report: Report) -> None:
    """Plans for MNIST, whose 60,000 records are not needed for that."""
    first, last = printed("yu.clip.experiment").value
    _, shrinkage, floor = printed("yu.covertype.clip").value
    rate, n_samples, n_iter = printed("yu.sampling").value, 60_000, 1000
    strict, _ = printed("yu.restricted.budget").value
    rows = []
    line = Polynomial(first, last, horizon=n_iter)
    shrinking = ExponentialDecay(first, 1 - shrinkage, floor=floor * first)
    for place, epsilon, delta, relation, clip in (
        ("Figure 2", printed("yu.figure2.epsilon").value, DELTA, "add_or_remove_one", line),
        ("Appendix B", strict, n_samples**-2, "replace_one", shrinking),
    ):
        budget = {"epsilon": epsilon, "delta": delta}
        run = {"n_iter": n_iter, "sampling_rate": rate}
        noise = PrivacyCalculator(relation).noise_multiplier(**budget, **run)
        model = DPLogisticRegression(
            **budget,
            neighboring_relation=relation,
            n_samples_estimate=n_samples if relation == "add_or_remove_one" else None,
            sampling_rate=rate,
            max_iter="budget",
            noise_multiplier=noise,
            clip_schedule=clip,
            preconditioner=None,
        )
        longer = model.plan(n_samples, 784, 10).n_iter
        rows.append([place, f"{epsilon:g}", f"{delta:.2g}", relation, noise, n_iter, longer])
    columns = ["", "epsilon", "delta", "neighbours", "noise multiplier", "T", "clip falls"]
    report.table(
        f"Iterations that the noise for T lasts for at their constants (q = {rate}, clip {first} "
        f"to {last}, in Appendix B by a thousandth a step as on covertype; T, and the delta of "
        "Figure 2, are not printed)",
        columns,
        rows,
    )


def sweep(report: Report, accuracy: dict, epsilon: float, steps, coefficients) -> None:
    """Add the accuracies at one epsilon."""
    mean = {name: values.mean() for name, values in accuracy.items()}
    report.table(
        f"Accuracy in percent, epsilon {epsilon:g}, constant clip {CLIP}, T = {N_ITER}",
        ["c", *(f"{c:g}" for c in coefficients)],
        (
            [
                f"step {step:g}, {mode}",
                *(f"{mean[key(step, 'constant clip', c, mode)]:.1f}" for c in coefficients),
            ]
            for step, mode in [*((step, MODES[0]) for step in steps), (steps[-1], MODES[1])]
        ),
    )
    report.table(
        f"Accuracy in percent, epsilon {epsilon:g}: what the clip does (low: {LOW_CLIP}, below the "
        "first gradients)",
        ["", *(f"step {step:g}, c = {c:g}" for step in steps for c in (0.0, RECOMMENDED))],
        (
            [
                clip,
                *(
                    shown(accuracy[key(step, clip, c)])
                    for step in steps
                    for c in (0.0, RECOMMENDED)
                ),
            ]
            for clip in ("constant clip", *FALLING, "low clip")
        ),
    )


def across(report: Report, found: dict, steps, coefficients) -> None:
    """The curves of their figures."""
    settings = [(e, step) for e in sorted(found, reverse=True) for step in steps]
    for name, clip, c in (
        (f"momentum {RECOMMENDED} helps", "constant clip", RECOMMENDED),
        ("the falling clip helps", LINE, 0.0),
        ("both help", LINE, RECOMMENDED),
    ):
        gains = [
            comparison(found[e][key(step, clip, c)] - found[e][key(step, "constant clip", 0.0)])
            for e, step in settings
        ]
        at_theirs = [gain for gain, (e, _) in zip(gains, settings, strict=True) if e == THEIRS]
        report.claim(
            name,
            paper="more accurate (Figure 2: epsilon 2)",
            ours=", ".join(
                f"{ours} (epsilon {e:g}, step {step:g})"
                for (ours, *_), (e, step) in zip(gains, settings, strict=True)
            ),
            holds=all(holds for _, holds, _ in at_theirs),
            main=True,
        )
    good = [c for c in printed("yu.figure3.best").value if c in coefficients]
    gaps, last = [], []
    for accuracy in found.values():
        for step in steps:
            own = {c: accuracy[key(step, "constant clip", c)] for c in coefficients}
            best = max(own, key=lambda c, own=own: own[c].mean())
            gaps.append((best, max(own[c].mean() for c in good) - own[best].mean()))
            last.append(max(own[c].mean() for c in good) - own[0.9].mean())
    report.claim(
        "the best coefficients of momentum",
        paper=printed("yu.figure3.best"),
        ours="within "
        f"{-min(gap for _, gap in gaps):.1f} points of the best in all {len(gaps)} settings; the "
        f"best {', '.join(f'{best:g}' for best, _ in gaps)}",
        holds=min(gap for _, gap in gaps) > -1,
        remark="the best c depends on the step, which momentum makes 1/(1 - c) times as long",
    )
    report.claim(
        "c = 0.9 ends badly",
        paper=printed("yu.figure3.worst"),
        ours=f"{min(last):.1f} to {max(last):.1f} points below 0.6 or 0.7",
        holds=min(last) > 0,
        main=True,
    )
    if len(found) > 1:
        gains = {
            epsilon: " and ".join(
                comparison(
                    accuracy[key(step, LINE, RECOMMENDED)] - accuracy[key(step, "constant clip", 0)]
                )[0]
                for step in steps
            )
            for epsilon, accuracy in found.items()
        }
        grown = [
            np.subtract(
                *(
                    found[e][key(s, LINE, RECOMMENDED)] - found[e][key(s, "constant clip", 0)]
                    for e in (min(found), max(found))
                )
            ).mean()
            > 0
            for s in steps
        ]
        report.claim(
            "the advantage grows as the budget gets tighter",
            paper="in words (Section 3)",
            ours="both: "
            + ", ".join(f"{gain} points at epsilon {epsilon:g}" for epsilon, gain in gains.items())
            + f" (steps {' and '.join(f'{step:g}' for step in steps)})",
            holds=len(set(grown)) == 1 and grown[0],
            remark="the paper's tighter budget is fewer steps, here a smaller epsilon",
        )
    report.not_run(
        "restricted setting: accuracy on MNIST",
        paper=printed("yu.figure4.accuracy"),
        why="whether the model is the convex one is not said; what can be run is below",
        main=True,
    )
    report.not_run(
        "covertype, with a clip that shrinks by a thousandth a step down to one half",
        paper=printed("yu.covertype"),
        why="a network with two hidden layers; the clip is `ExponentialDecay(8, 0.999, floor=4)`",
    )
    gains = [
        mean_and_error(accuracy[key(s, LINE, 0.0)] - accuracy[key(s, "low clip", 0.0)])
        for accuracy in found.values()
        for s in steps
    ]
    report.note(
        "The falling clip is compared with a constant one of the same start, as in the paper. "
        f"Against a constant clip of {LOW_CLIP}, which is below the first gradients, it gains "
        + ", ".join("{:+.1f} ±{:.1f}".format(*gain) for gain in gains)
        + " points without momentum."
    )


def compared(models: dict, epsilon: float, arguments, n_splits: int, n_repeats: int, **options):
    """Return the accuracies of models on digits, fold by fold."""
    results = compare(
        {"digits": digits()},
        models,
        epsilons=[epsilon],
        n_splits=n_splits,
        n_repeats=n_repeats,
        seed=arguments.seed,
        n_jobs=arguments.jobs,
        progress=not arguments.quick,
        **{"delta": DELTA, **options},
    )
    return accuracies(results, epsilon)


def inside_of_a_run(report: Report, *options) -> None:
    """Shorter runs at the noise of the whole one, which is what a run passes through."""
    calculator, epsilon = PrivacyCalculator(), EPSILONS[-1]
    noise = calculator.noise_multiplier(epsilon=epsilon, delta=DELTA, n_iter=N_ITER)
    coefficients, curves = (0.0, RECOMMENDED, 0.9), {}
    for t in TIMES:
        spent = calculator.epsilon(delta=DELTA, noise_multiplier=noise, n_iter=t)
        models = estimators(spent, STEPS, coefficients, n_iter=t)
        names = {(step, c): key(step, "constant clip", c) for step in STEPS for c in coefficients}
        found = compared({name: models[name] for name in names.values()}, spent, *options)
        curves[t] = {run: found[name] for run, name in names.items()}
    report.table(
        f"Accuracy in percent inside of runs, epsilon {epsilon:g} for T = {N_ITER}, constant clip",
        ["", *(f"t = {t}" for t in TIMES)],
        (
            [f"step {step:g}, c = {c:g}", *(shown(of[step, c]) for of in curves.values())]
            for step, c in curves[N_ITER]
        ),
    )
    compared_at = [
        [comparison(of[step, 0.9] - of[step, RECOMMENDED]) for of in curves.values()]
        for step in STEPS
    ]
    gains = [", ".join(text for text, *_ in own) for own in compared_at]
    report.claim(
        "c = 0.9 is ahead at first and behind at the end",
        paper=printed("yu.figure3.worst").text("rises faster, ends badly"),
        ours=f"against {RECOMMENDED}, at t = {', '.join(map(str, TIMES))}: "
        + "; ".join(
            f"{gain} points (step {step:g})" for step, gain in zip(STEPS, gains, strict=True)
        ),
        holds=all(own[0][1] and own[-1][2] == "the opposite" for own in compared_at),
        remark="the epsilon of the figure is not printed",
    )


def restricted(report: Report, arguments, n_splits: int, *options) -> None:
    """Appendix B: batches, one record in place of another, delta = 1/n²."""
    epsilon, _ = printed("yu.restricted.budget").value
    n_samples = len(digits()[1]) * (n_splits - 1) // n_splits
    delta, relation = n_samples**-2, "replace_one"
    models = estimators(epsilon, STEPS, [0.0, RECOMMENDED], delta, relation, BATCH)
    runs = {
        "plain": ("constant clip", 0.0),
        "momentum": ("constant clip", RECOMMENDED),
        "falling clip": (LINE, 0.0),
        "both": (LINE, RECOMMENDED),
    }
    names = [key(step, *run) for run in runs.values() for step in STEPS]
    chosen = {name: models[name] for name in names}
    accuracy = compared(chosen, epsilon, arguments, n_splits, *options, delta=delta)
    found = {name: [accuracy[key(step, *run)] for step in STEPS] for name, run in runs.items()}
    report.table(
        f"Accuracy in percent, the restricted setting: epsilon {epsilon:g}, delta {delta:.2g}, "
        f"{relation}, batches of {BATCH:g}, T = {N_ITER}",
        ["", *(f"step {step:g}" for step in STEPS)],
        ([name, *map(shown, values)] for name, values in found.items()),
    )
    plain = found.pop("plain")
    gains = {
        name: " and ".join(comparison(a - b)[0] for a, b in zip(values, plain, strict=True))
        for name, values in found.items()
    }
    report.claim(
        "restricted setting: momentum, the falling clip and both help",
        paper="more accurate (Figure 4)",
        ours="; ".join(f"{name} {gain} points" for name, gain in gains.items())
        + f" (steps {' and '.join(f'{step:g}' for step in STEPS)})",
        holds=all(
            comparison(a - b)[1]
            for values in found.values()
            for a, b in zip(values, plain, strict=True)
        ),
    )


def figure(found: dict, steps, coefficients, plt):
    size = 5 * len(found), 4.2
    fig, axes = plt.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
    for axis, (epsilon, accuracy) in zip(axes[0], found.items(), strict=True):
        for color, step in enumerate(steps):
            for mode, style in zip(MODES, ("o-", "o--"), strict=True):
                if mode == MODES[1] and step != steps[-1]:
                    continue
                folds = [accuracy[key(step, "constant clip", c, mode)] for c in coefficients]
                mean, error = np.transpose([mean_and_error(values) for values in folds])
                label = f"step {step:g}{' (1 - c)' if mode == MODES[1] else ''}"
                axis.plot(coefficients, mean, style, ms=3, color=f"C{color}", label=label)
                band = mean - error, mean + error
                axis.fill_between(coefficients, *band, color=f"C{color}", alpha=0.1, lw=0)
            for c, marker in ((0.0, "v"), (RECOMMENDED, "^")):
                values = accuracy[key(step, LINE, c)]
                axis.plot(c, values.mean(), marker, color=f"C{color}", ms=8)
        axis.set(title=f"epsilon = {epsilon:g} (triangles: the clip falls)", xlabel="c")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("accuracy in percent, test folds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return fig


def reproduce(arguments) -> Report:
    rng = np.random.default_rng(arguments.seed)
    epsilons, steps, coefficients, n_splits = EPSILONS, STEPS, COEFFICIENTS, 5
    n_repeats, n_draws = arguments.repeats, 200_000
    if arguments.quick:
        epsilons, steps, coefficients, n_splits, n_repeats = [2.0], STEPS[:1], [0.0, 0.6, 0.9], 2, 1
        n_draws = 20_000
    found = {}
    options = arguments, n_splits, n_repeats
    for epsilon in epsilons:
        found[epsilon] = compared(estimators(epsilon, steps, coefficients), epsilon, *options)
    report = Report(
        "Momentum and a falling clip: softmax regression on digits",
        "Yu, Zhang & Chen, improve the gradient perturbation approach (2018): Sections 2 and 3, "
        "Appendix B, Figures 1 to 4. Digits stand in for MNIST, at the clip's ratio to the first "
        "gradients and about the length of steps of the paper, with all records in each "
        "iteration, at delta 1e-5 and under zero_out, but in the restricted setting. Gains in "
        "points of accuracy on the same folds ± standard error.",
    )
    noise_variance(report, rng, n_draws)
    falling_clip(report, arguments.quick)
    report.other_data = STAND_IN
    for epsilon, accuracy in found.items():
        sweep(report, accuracy, epsilon, steps, coefficients)
    across(report, found, steps, coefficients)
    if not arguments.quick:
        inside_of_a_run(report, *options)
        restricted(report, *options)
    report.drawing = lambda plt: figure(found, steps, coefficients, plt)
    return report


def add_arguments(parser) -> None:
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv, add_arguments)


if __name__ == "__main__":
    main()
