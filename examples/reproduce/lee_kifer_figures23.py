"""Logistic regression and SVM against epsilon: Figures 2 and 3 of Lee & Kifer (2018).

DP-AGD at the constants of the paper and the methods that it was compared with, on the same folds of
Adult and BANK. Every method is the corrected one, whose guarantee holds; where the authors' own
program did not have the guarantee it claimed is said among the claims, with our test of it.

Run ``python examples/reproduce/lee_kifer_figures23.py``; ``--quick`` takes the artificial census,
which needs no files. The data come from ``--data-home`` or the folder in ``DPGLM_DATA``, else from
OpenML. With ``--results FILE`` an interrupted run resumes. ``--full`` takes the
six epsilons and two repeats of five folds of the authors' program, and two later methods besides.
"""

import numpy as np
from _lee_kifer import (
    NOT_AT_HAND,
    SOURCE,
    STATE_OF_THE_ART,
    add_run_arguments,
    add_tables,
    claim_panel,
    compared,
    figure,
    methods,
    sparse,
)
from _report import Report, run

from dpglm.datasets import fetch_adult, fetch_bank, make_census

EPSILONS = [0.1, 0.4, 1.6]
ALL_EPSILONS = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
LOSSES = {"logistic": "logistic regression", "svm": "SVM"}


def leak_of_the_published_selection(
    epsilon: float, n_candidates: int, rng: np.random.Generator, n_draws: int
) -> tuple[float, float]:
    """Return the privacy loss of choosing a step with the noise added to, and taken off, losses.

    Exponential noise of scale 1/epsilon. A record that raises the loss of one candidate by one
    decides how often that candidate is the least.
    """
    noise = rng.exponential(1 / epsilon, (n_draws, n_candidates))
    raised = np.append(1.0, np.zeros(n_candidates - 1))
    losses = []
    for sign in (1, -1):
        without, with_record = (
            np.mean((loss + sign * noise).argmin(axis=1) == 0) for loss in (0.0, raised)
        )
        losses.append(float(np.log(without / with_record)))
    return losses[0], losses[1]


def claims_about_the_program(report: Report, rng: np.random.Generator, quick: bool) -> None:
    """Add where the authors' program did not have the guarantee that it claims."""
    epsilon, n_candidates = 0.2, 21
    added, subtracted = leak_of_the_published_selection(
        epsilon, n_candidates, rng, 100_000 if quick else 400_000
    )
    report.claim(
        "program: the choice of a step among 21 is epsilon-DP",
        paper=f"privacy loss at most {epsilon:g}",
        ours=f"{added:.2f} simulated, {(n_candidates - 1) * epsilon:g} exactly; with the sign "
        f"corrected {subtracted:.1f}",
        holds=False,
        remark="exponential noise is added to losses of which the least wins, where it must be "
        "taken off: 20 times the epsilon that is charged "
        "(test_selection.py: test_that_test_rejects_the_published_code)",
    )
    private = "(epsilon, delta)-DP"
    for part, paper, ours, why in (
        (
            "features are scaled to [0, 1]",
            private,
            "we scale by public bounds",
            "the observed range of each column depends on single records "
            "(test_schema.py: test_transformer_does_not_depend_on_the_rows_it_was_fitted_on)",
        ),
        (
            "objective perturbation",
            private,
            "the column of ones counts in the bound, and every coefficient is penalised",
            "rows are normalised before the ones are appended (norm √2, taken for 1), and the "
            "intercept is not penalised (test_perturbation.py: "
            "test_a_planted_bug_is_caught_by_the_exact_densities)",
        ),
        (
            "output perturbation",
            private,
            "rows are shortened to a public bound, which is the Lipschitz constant",
            "the constant is taken for 1, and rows have norm 3 (test_perturbation.py: "
            "test_a_planted_bug_is_caught_by_the_shift)",
        ),
        (
            "output perturbation is scored on a test fold",
            "cross-validated",
            "fitted to the training folds",
            "it is fitted to all rows, those of the test fold included",
        ),
        (
            "SGD-MA",
            private,
            "Poisson samples, privacy loss distribution",
            "batches of a fixed size are accounted as Poisson samples "
            "(test_sampling.py: test_batch_sizes_expose_a_sampler_of_fixed_size)",
        ),
    ):
        report.claim(f"program: {part}", paper=paper, ours=ours, holds=False, remark=why)


def reproduce(arguments) -> Report:
    if arguments.quick:
        data = {"census": make_census(1500, random_state=0)}
        losses, epsilons, n_splits, n_repeats = ["logistic"], [1.6], 2, 1
    else:
        home = arguments.data_home
        data = {"Adult": sparse(fetch_adult(home)), "BANK": sparse(fetch_bank(home))}
        losses, n_splits = list(LOSSES), 5
        epsilons = ALL_EPSILONS if arguments.full else EPSILONS
        n_repeats = 2 if arguments.full else 1
    report = Report(
        f"DP-AGD against the baselines on {' and '.join(data)}",
        f"{SOURCE}: Figures 2 and 3. {NOT_AT_HAND} Gains are means over the same folds ± standard "
        "error, those of losses with the sign turned; what is within two of them is no difference.",
    )
    panels = {
        f"{name}, {LOSSES[loss]}": compared(
            name,
            table,
            methods(loss, np.unique(table[1]), arguments.full),
            epsilons=epsilons,
            n_splits=n_splits,
            n_repeats=n_repeats,
            seed=arguments.seed,
            n_jobs=arguments.jobs,
            results_file=arguments.results,
            progress=not arguments.quick,
        )
        for name, table in data.items()
        for loss in losses
    }
    for title, results in panels.items():
        claim_panel(report, title, results, ("accuracy", "training_loss"), epsilons)
    claims_about_the_program(report, np.random.default_rng(arguments.seed), arguments.quick)
    add_tables(report, panels, epsilons)
    report.note(
        f"delta = 1e-8. Features are encoded with public bounds. {STATE_OF_THE_ART} is charged by "
        "its privacy loss distribution and ObjPert by its exact profile, both more tightly than "
        "was known in 2018, so that the methods DP-AGD is compared with are stronger here than in "
        "the paper. DP-AGD with our defaults has the exponential mechanism at a quarter of the "
        "cost, a tenth of the budget for choices, and momentum."
    )
    report.note(
        "What the sign of the noise is worth: on Adult at epsilon .1, encoded by observed ranges, "
        "the authors' program is 79.6 ±0.2 percent accurate as it is and 76.3 ±0.6 with the sign "
        "corrected (20 and 10 fits, measured once apart from this script)."
    )
    report.drawing = figure(panels)
    return report


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv, add_run_arguments)


if __name__ == "__main__":
    main()
