"""What the norm of a noisy gradient says: Table 1 of Lee & Kifer (2018).

Along a descent without noise on Adult: how long the gradient is, how long it appears once the noise
of a private release is added, and how often a step along the noisy one still leads downhill. And
what averaging with a second, independent release improves, as the algorithm does when no step
helps.

Run ``python examples/reproduce/lee_kifer_table1.py``; ``--quick`` takes the artificial census,
which needs no files. Adult comes from ``--data-home`` or the folder in ``DPGLM_DATA``, else from
OpenML.
"""

from dataclasses import dataclass

import numpy as np
from _lee_kifer import NOT_AT_HAND, SOURCE, sparse
from _report import Report, mean_and_error, run

from dpglm import DPAGDClassifier
from dpglm.datasets import fetch_adult, make_census
from dpglm.losses import Logistic
from dpglm.sums.objective import Objective

CLIP = 3.0
STEP = 0.5
ITERATIONS = [1, 3, 10, 30, 100, 300, 1000]
EPSILON, EPSILONS = 0.4, [0.1, 0.4, 1.6]
# Averages are shown where neither gradient nor noise hides the other.
AVERAGED_AT, AVERAGED_EPSILON = 30, 1.6
# The largest growth of the authors' experiments.
GROWTH = 0.5


@dataclass(frozen=True)
class Noisy:
    """Many independent releases of the mean gradient at one point."""

    gradient: np.ndarray
    releases: np.ndarray

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.gradient))

    @property
    def norms(self) -> np.ndarray:
        """Norm of each release."""
        return np.linalg.norm(self.releases, axis=1)

    @property
    def errors(self) -> np.ndarray:
        """Distance of each release from the gradient."""
        return np.linalg.norm(self.releases - self.gradient, axis=1)

    @property
    def cosines(self) -> np.ndarray:
        return self.releases @ self.gradient / (self.norms * self.norm)


def gradients(X, y: np.ndarray, iterations: list[int]) -> list[np.ndarray]:
    """Return the mean clipped gradient at these iterations, from 1, of a descent without noise."""
    objective = Objective(X, np.where(y == np.unique(y)[1], 1.0, -1.0), Logistic())
    coef, found = np.zeros(objective.coef_shape), []
    for t in range(1, max(iterations) + 1):
        gradient = objective.gradient_sum(coef, CLIP) / X.shape[0]
        if t in iterations:
            found.append(gradient)
        coef = coef - STEP * gradient
    return found


def first_noise(X, y: np.ndarray, epsilon: float) -> float:
    """Return the noise on the first mean gradient of DP-AGD at the published constants."""
    model = DPAGDClassifier.as_published(
        epsilon=epsilon, clip_schedule=CLIP, max_iter=1, classes=list(np.unique(y))
    )
    return model.fit(X, y).trace_.noise_scale[0] / X.shape[0]


def released(gradient: np.ndarray, noise: float, n_draws: int, rng: np.random.Generator) -> Noisy:
    return Noisy(gradient, gradient + noise * rng.standard_normal((n_draws, gradient.size)))


def claims_along_the_way(report: Report, way: list[Noisy], iterations: list[int], noise: float):
    """Add what the norm of a noisy gradient says at the beginning and at the end."""
    first, last = way[0], way[-1]
    expected = noise * np.sqrt(last.gradient.size)
    report.claim(
        "gradients are large at first and shrink as the optimum comes near",
        paper="so the noise they bear should shrink too",
        ours=f"{first.norm:.3f} at iteration {iterations[0]}, {last.norm:.4f} at {iterations[-1]}",
        holds=last.norm < first.norm / 3,
        remark=f"by a factor of {first.norm / last.norm:.0f}",
    )
    seen = last.norms.mean() / last.norm
    report.claim(
        "with the same noise in every iteration, the noisy norm hides that",
        paper="the noise comes to dominate",
        ours=f"at iteration {iterations[-1]} the noisy norm is {last.norms.mean():.3f}, that of "
        f"the gradient {last.norm:.4f}; noise alone has {expected:.3f}",
        holds=seen > 2 and abs(last.norms.mean() / expected - 1) < 0.1,
        remark="it measures the noise: σ √d" if seen > 2 else "the noise is too small here",
    )
    early, late = np.mean(first.cosines > 0), np.mean(last.cosines > 0)
    report.claim(
        "late in the run a step along a noisy gradient often leads uphill",
        paper="then more budget is needed",
        ours=f"downhill {early:.0%} of the times at iteration {iterations[0]}, {late:.0%} at "
        f"{iterations[-1]}",
        holds=late < 0.9 < early,
        remark="one of two would be chance" if late < 0.9 < early else "not at this budget",
    )


def claims_about_averages(
    report: Report,
    gradient: np.ndarray,
    where: str,
    noise: float,
    n_draws: int,
    rng: np.random.Generator,
) -> None:
    """Add what a second release improves, averaged by precision and as printed."""
    single = released(gradient, noise, n_draws, rng)
    refinement = released(gradient, noise / np.sqrt(GROWTH), n_draws, rng)
    weight = 1 / (1 + GROWTH)
    averaged = Noisy(gradient, weight * single.releases + (1 - weight) * refinement.releases)
    fall = averaged.errors.mean() / single.errors.mean()
    report.claim(
        f"a refinement at gamma = {GROWTH:g} of the cost, averaged in, makes the gradient better",
        paper="as good as one release of the summed cost",
        ours=f"error times {fall:.4f}; (1 + gamma)^-1/2 = {weight**0.5:.4f}",
        holds=abs(fall / weight**0.5 - 1) < 0.01,
        remark="weights are the costs (test_agd.py: test_averaged_gradients_match_the_vectors)",
    )
    rows = []
    for k in (1, 2, 4, 8, 16, 32, 64):
        mean = released(gradient, noise / np.sqrt(k), n_draws, rng)
        cosine, error = mean_and_error(mean.cosines)
        rows.append(
            [
                str(k),
                float(mean.norms.mean()),
                float(mean.errors.mean()),
                f"{cosine:.3f} ±{error:.3f}",
                f"{np.mean(mean.cosines > 0):.1%}",
            ]
        )
    report.table(
        f"Average of k releases at {where}, where the gradient has norm "
        f"{np.linalg.norm(gradient):.4f}",
        ["k", "norm", "error", "cosine", "downhill"],
        rows,
    )
    report.claim(
        "averages of noisy gradients get better with every release",
        paper="better",
        ours=f"cosine with the gradient {rows[0][3]} for one, {rows[-1][3]} for 64; error "
        f"{rows[0][2] / rows[-1][2]:.2f} times smaller",
        holds=abs(rows[0][2] / rows[-1][2] / 8 - 1) < 0.05,
        remark="the square root of their number; noise is independent",
    )
    unit = single.releases / single.norms[:, None]
    printed = Noisy(gradient, weight * unit + (1 - weight) * refinement.releases)
    lost, lost_error = mean_and_error(averaged.cosines - printed.cosines)
    report.claim(
        "Algorithm 1 as printed: the direction is made a unit vector, and that is averaged with "
        "the new release",
        paper="the average of both releases",
        ours=f"cosine {printed.cosines.mean():.3f}, lower by {lost:.3f} ±{lost_error:.3f} than "
        f"that of the average ({single.cosines.mean():.3f} without a refinement)",
        holds=lost < 2 * lost_error,
        remark=f"the first has length 1 instead of {single.norms.mean():.2f}, so that the weights "
        "are no longer those of the variances; here the release itself is kept",
    )


def reproduce(arguments) -> Report:
    if arguments.quick:
        name, (X, y) = "the artificial census", make_census(5000, random_state=0)
        iterations, n_draws = [1, 30, 100], 300
    else:
        name, (X, y) = "Adult", sparse(fetch_adult(arguments.data_home))
        iterations, n_draws = ITERATIONS, 2000
    rng = np.random.default_rng(arguments.seed)
    path = gradients(X, y, iterations)
    report = Report(
        f"The norm of a noisy gradient on {name}",
        f"{SOURCE}: Table 1. {NOT_AT_HAND} Noise is that of the first gradient of DP-AGD at the "
        f"published constants; claims are at epsilon {EPSILON:g}, those about averages at "
        f"{AVERAGED_EPSILON:g}.",
    )
    noise = {epsilon: first_noise(X, y, epsilon) for epsilon in EPSILONS}
    ways = {
        epsilon: [released(gradient, std, n_draws, rng) for gradient in path]
        for epsilon, std in noise.items()
    }
    claims_along_the_way(report, ways[EPSILON], iterations, noise[EPSILON])
    report.table(
        "Norm of the mean gradient, and of the noisy one ± standard deviation of a release",
        ["iteration", "gradient", *(f"noisy, epsilon {epsilon:g}" for epsilon in EPSILONS)],
        (
            [
                str(iteration),
                ways[EPSILON][i].norm,
                *(f"{way[i].norms.mean():.4f} ±{way[i].norms.std():.4f}" for way in ways.values()),
            ]
            for i, iteration in enumerate(iterations)
        ),
    )
    report.table(
        "Noisy gradients along which a small step leads downhill",
        ["iteration", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)],
        (
            [str(iteration), *(f"{np.mean(way[i].cosines > 0):.1%}" for way in ways.values())]
            for i, iteration in enumerate(iterations)
        ),
    )
    claims_about_averages(
        report,
        path[iterations.index(AVERAGED_AT)],
        f"iteration {AVERAGED_AT}, epsilon {AVERAGED_EPSILON:g}",
        noise[AVERAGED_EPSILON],
        n_draws,
        rng,
    )
    report.drawing = lambda plt: figure(ways, iterations, plt)
    return report


def figure(ways: dict, iterations: list[int], plt):
    fig, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    way = next(iter(ways.values()))
    axes.loglog(iterations, [point.norm for point in way], "k.-", label="gradient")
    for color, (epsilon, way) in enumerate(ways.items()):
        means = [point.norms.mean() for point in way]
        label = f"noisy, epsilon {epsilon:g}"
        axes.loglog(iterations, means, ".-", color=f"C{color}", label=label)
    axes.set(xlabel="iteration", ylabel="norm")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def add_arguments(parser) -> None:
    parser.add_argument("--data-home", help="folder with the files of Adult")


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv, add_arguments)


if __name__ == "__main__":
    main()
