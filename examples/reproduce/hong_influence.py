"""What noise does to the result: the influence q_t of Hong, Wang & Zhou, measured.

The influence of the noise of iteration t on the final objective against the q_t of their theorems,
with and without momentum, at the steps of the theorems; what their dynamic schedule gains in
simulated private runs on a strongly convex problem; and what a schedule gains that is learned on
public rows. Run ``python examples/reproduce/hong_influence.py``; no files are needed.
"""

import numpy as np
from _descent import Problem, excess_risk
from _report import Report, comparison, mean_and_error, printed, run
from hong_bounds import (
    DELTA,
    MOMENTUM,
    bounds,
    influence,
    largest_momentum_step,
    momentum_bounds,
    optimal_n_iter,
    public_constants,
)
from scipy.special import expit

from dpglm import DPLogisticRegression
from dpglm.estimators.plan import PrivacyPlan
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.schedules import (
    BiasCorrectedMomentum,
    Constant,
    DynamicNoise,
    PublicMetadata,
)

N_SAMPLES = 5000
MOMENTA = (0.0, MOMENTUM)


def strongly_convex_problem(
    rng: np.random.Generator, n_rows: int = 120, n_features: int = 10
) -> Problem:
    """A logistic regression with rows of norm 1 at most and condition number 51 by its bounds."""
    X = rng.standard_normal((n_rows, n_features)) * 0.7 ** np.arange(n_features)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    target = np.sign(X @ rng.standard_normal(n_features) + 0.4 * rng.standard_normal(n_rows))
    return Problem(X, target, np.full(n_rows, 1 / n_rows), Logistic(), alpha=0.005)


def model_of(problem: Problem, momentum: float, noise="constant", n_iter=None):
    """Their descent, or debiased momentum at the longest step of Theorem 3.4."""
    smoothness = 0.25 + problem.alpha
    if n_iter is None:
        facts = {"alpha": problem.alpha, "curvature": 0.25, "max_row_norm": 1.0}
        mu = PrivacyBudget(1.0, DELTA).mu
        facts = PublicMetadata(N_SAMPLES, problem.X.shape[1], **facts, mu=mu)
        n_iter = optimal_n_iter(*public_constants(facts), dynamic=noise != "constant")
    step = (
        largest_momentum_step(momentum, smoothness, problem.alpha) if momentum else 1 / smoothness
    )
    return DPLogisticRegression(
        delta=DELTA,
        alpha=problem.alpha,
        max_row_norm=1.0,
        clip_schedule=1.0,
        noise_schedule=noise,
        step_schedule=Constant(step),
        momentum=BiasCorrectedMomentum(momentum),
        averaging=None,
        preconditioner=None,
        max_iter=n_iter,
        fit_intercept=False,
        classes=[-1, 1],
    )


def plan_of(problem: Problem, *arguments, **options):
    return model_of(problem, *arguments, **options).plan(N_SAMPLES, problem.X.shape[1])


def learned_noise(problem: Problem, plan: PrivacyPlan) -> DynamicNoise:
    """Learn the shape of the noise on a logistic problem: little where it reaches the end.

    Noise in iteration t moves the end of the run by G_t times the noise, to first order, through
    steps, momentum and averaging. G_t follows backwards from the second derivatives along the path
    without noise. With H at its end, the noise raises the objective by ``tr(G_t' H G_t) / 2`` times
    its variance: the influence q_t, exact and not a bound.
    """
    size = problem.X.shape[1]

    def hessian(coef: np.ndarray) -> np.ndarray:
        chance = expit(problem.X @ coef)
        weights = problem.share * chance * (1 - chance)
        return (problem.X.T * weights) @ problem.X + problem.alpha * np.eye(size)

    coef = velocity = average = np.zeros(size)
    path = []
    for t in range(plan.n_iter):
        path.append(coef)
        gradient = problem.gradient(coef[np.newaxis])[0]
        direction, velocity = plan.momentum.direction(gradient, velocity, t + 1)
        coef = coef - plan.step[t] * direction
        average = average + plan.averaging[t] * coef
    end, q = hessian(average), np.empty(plan.n_iter)
    # How the average follows from the coefficients, the velocity and the gradient of t.
    of_coef = of_velocity = np.zeros((size, size))
    for t in reversed(range(plan.n_iter)):
        of_coef = of_coef + plan.averaging[t] * np.eye(size)
        by_gradient = plan.momentum.direction(1.0, 0.0, t + 1)
        by_velocity = plan.momentum.direction(0.0, 1.0, t + 1)
        of_gradient, of_velocity = (
            velocity * of_velocity - plan.step[t] * direction * of_coef
            for direction, velocity in (by_gradient, by_velocity)
        )
        q[t] = np.vdot(of_gradient, end @ of_gradient)
        of_coef = of_coef + of_gradient @ hessian(path[t])
    # No iteration gets more than a thousand times the noise of another.
    return DynamicNoise(influence=tuple(np.maximum(q, 1e-12 * q.max()).tolist()))


def empirical_influence(report: Report, rng: np.random.Generator) -> dict:
    """Both sides in units of the variance of the noise: the rise of f against the noise term."""
    problem = strongly_convex_problem(rng)
    smoothness = 0.25 + problem.alpha
    kappa, n_features = smoothness / problem.alpha, problem.X.shape[1]
    curves, rows = {}, []
    for momentum, n_iter in zip(MOMENTA, (160, 1300), strict=True):
        model = model_of(problem, momentum, n_iter=n_iter)
        noise = learned_noise(problem, model.plan(N_SAMPLES, problem.X.shape[1]))
        h = smoothness * model.step_schedule.value
        # Half the trace against M/2 times the squared step, or with momentum 2 steps, D times q_t.
        factor = h * h / (2 * smoothness) if not momentum else 2 * h / smoothness
        q = np.array(noise.influence)[::-1] / (2 * factor * n_features)
        predicted = influence(n_iter, kappa / h, momentum)
        curves[momentum] = q, predicted
        half = slice(n_iter // 2, n_iter)
        decay, theirs = (
            np.exp(np.polyfit(np.arange(n_iter)[half], np.log(x[half]), 1)[0])
            for x in (q, predicted)
        )
        rows.append([f"{momentum}", n_iter, h, int(q.argmax()), int(predicted.argmax())])
        rows[-1] += [float((q / predicted).max()), float(decay), float(theirs)]
    columns = ["momentum", "T", "step M", "peak at T-t", "peak, theirs", "largest ratio"]
    report.table(
        f"Influence of one iteration's noise over that of the theorems (logistic, kappa "
        f"{kappa:.0f}); decay per iteration in the first half of the run",
        [*columns, "decay", "decay, theirs"],
        rows,
    )
    for row, key in zip(rows, ("hong.influence", "hong.momentum.influence"), strict=True):
        report.claim(
            "q_t bounds the influence of the noise of iteration t, "
            + ("with momentum" if float(row[0]) else "without momentum"),
            paper=printed(key),
            ours=f"measured/predicted at most {row[5]:.1g}; decay {row[6]:.4f} an iteration, "
            f"{row[7]:.4f} predicted",
            holds=row[5] <= 1 and row[6] <= row[7],
            remark="an upper bound, not a rate: descent contracts errors by 1 - 1/kappa or more, "
            "their squares by its square"
            if not float(row[0])
            else f"at the step where zeta of Eq. (17) is zero, {row[2]:.3f}/M",
            main=not float(row[0]),
        )
    return curves


def simulated_gain(report: Report, rng: np.random.Generator, quick: bool) -> None:
    problem, auxiliary = strongly_convex_problem(rng), strongly_convex_problem(rng)
    ends = np.stack([np.zeros(problem.X.shape[1]), problem.stationary_point()])
    start, minimum = problem.value(ends)
    n_runs = 200 if quick else 2000
    found, n_iter = {}, {}
    for momentum in MOMENTA:
        # The T* of static noise; with momentum as many times more as its steps are shorter.
        plan = plan_of(problem, 0.0)
        h = model_of(problem, momentum).step_schedule.value / plan.step[0]
        n_iter[momentum] = round(plan.n_iter / h)
        model = model_of(problem, momentum, n_iter=n_iter[momentum])
        learned = learned_noise(auxiliary, model.plan(N_SAMPLES, auxiliary.X.shape[1]))
        # Their q_t of these steps: gamma is 1 - step alpha.
        q = influence(n_iter[momentum], 1 / (model.step_schedule.value * problem.alpha), momentum)
        dynamic = type(learned)(influence=tuple(q[::-1].tolist()))
        for name, noise in (("static", "constant"), ("dynamic", dynamic), ("learned", learned)):
            plan = plan_of(problem, momentum, noise, n_iter[momentum])
            found[momentum, name] = excess_risk(problem, minimum, plan, rng, n_runs)
    names = ("static", "dynamic", "learned")
    rows = []
    for momentum in MOMENTA:
        cells = (mean_and_error(1e4 * found[momentum, name]) for name in names)
        texts = (f"{mean:.2f} ±{error:.2f}" for mean, error in cells)
        rows.append([f"{momentum}", n_iter[momentum], *texts])
    report.table(
        f"Excess risk x 10^4 (n = {N_SAMPLES}, epsilon 1, {n_runs} runs); learned: by "
        "learned_noise on another problem of the same kind",
        ["momentum", "T", *names],
        rows,
    )
    constants = public_constants(plan_of(problem, 0.0).metadata, gap=start - minimum)
    for momentum, of, key, paper in (
        (
            0.0,
            bounds,
            "hong.bound",
            f"{printed('hong.rate.dynamic')} for {printed('hong.rate.static')}",
        ),
        (
            MOMENTUM,
            momentum_bounds,
            "hong.momentum.bound",
            str(printed("hong.rate.momentum_dynamic")),
        ),
    ):
        named = f", momentum {momentum}" if momentum else ""
        limits = [of(*constants, d, n_iter[momentum])[-1] for d in (False, True)]
        means = [found[momentum, name].mean() / (start - minimum) for name in names[:2]]
        report.claim(
            f"the bound with all its constants{named}",
            paper=printed(key),
            ours="measured/bound {:.2g} with static, {:.2g} with dynamic noise".format(
                *np.divide(means, limits)
            ),
            holds=np.all(np.less_equal(means, limits)),
            remark=("nearly empty: " if min(limits) > 1 else "")
            + "the bound is {:.2g} and {:.2g} times f(θ_1) - f*".format(*limits)
            + (", without its third term, which is not positive" if momentum else ""),
        )
        gain = found[momentum, "static"] - found[momentum, "dynamic"]
        ours, holds, remark = comparison(100 * gain / found[momentum, "static"].mean(), " % lower")
        report.claim(
            f"the dynamic schedule ends lower{named}",
            paper=paper,
            ours=ours,
            holds=holds,
            main=not momentum,
            remark="; ".join(
                [remark or f"the bound by {100 * (1 - limits[1] / limits[0]):.0f} %"]
                + ["T_hat is not defined in the slides"] * bool(momentum)
            ),
        )
    gain = found[0.0, "dynamic"] - found[0.0, "learned"]
    ours, holds, _ = comparison(100 * gain / found[0.0, "dynamic"].mean(), " % lower")
    report.claim(
        "policies can be learned on auxiliary tasks",
        paper="slide on privacy policies",
        ours=f"{ours} than the dynamic schedule, without momentum",
        holds=holds,
        remark="an outlook, in words; the learned schedule follows the influence, not its bound",
    )
    change = found[MOMENTUM, "static"] - found[0.0, "static"].mean()
    mean, error = mean_and_error(100 * change / found[0.0, "static"].mean())
    report.claim(
        "momentum reduces the noise further",
        paper=printed("hong.rate.momentum_static"),
        ours=f"static noise, momentum {MOMENTUM}: {mean:+.0f} ±{error:.0f} % of the excess risk "
        f"after {n_iter[MOMENTUM] / n_iter[0.0]:.1f} times the iterations",
        holds=mean < -2 * error,
        remark="rates with constants and a T_hat that are not defined; the step of Theorem 3.4 is "
        f"{n_iter[MOMENTUM] / n_iter[0.0]:.1f} times shorter than 1/M",
    )


def figure(curves: dict, plt):
    fig, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for color, (momentum, (q, predicted)) in enumerate(curves.items()):
        label = f"momentum {momentum:g}" if momentum else "plain descent"
        axes.semilogy(predicted, "--", color=f"C{color}", lw=1)
        axes.semilogy(q, color=f"C{color}", label=label)
    axes.set(xlabel="age of the noise, T - t", ylabel="influence on the final objective")
    axes.set_title("solid: measured; dashed: predicted $q_t$", fontsize=10)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def reproduce(arguments) -> Report:
    rng = np.random.default_rng(arguments.seed)
    report = Report(
        "Dynamic noise: influence, gain and momentum",
        "Hong, Wang & Zhou, slides: the influence q_t of Theorems 3.2 and 3.4, at their steps; the "
        "advantage of the dynamic schedule; momentum; learning a schedule elsewhere.",
    )
    curves = empirical_influence(report, rng)
    simulated_gain(report, rng, arguments.quick)
    report.drawing = lambda plt: figure(curves, plt)
    return report


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv)


if __name__ == "__main__":
    main()
