"""Logistic regression and SVM against epsilon: Figures 2 and 3 of Lee & Kifer (2018).

DP-AGD at the constants of the paper and the methods that it was compared with, on the same folds of
Adult and BANK, in the columns of the paper, and of the IPUMS extracts where their files are at
hand. Every method is the corrected one, whose guarantee holds; where the authors' own program did
not have the guarantee that it claims stands in a table of its own, with our test of it.

Run ``python examples/reproduce/lee_kifer_figures23.py``; ``--quick`` takes the artificial census,
which needs no files. The data come from ``--data-home`` or the folder in ``DPGLM_DATA``, else from
OpenML. With ``--results FILE`` an interrupted run resumes. ``--full`` takes six epsilons and two
repeats of five folds, two later methods besides, and an artificial table of the size of IPUMS-US.
"""

import math
from itertools import pairwise

import numpy as np
from _lee_kifer import (
    DELTA,
    FILES,
    GAMMA,
    LOSSES,
    NOT_PRIVATE,
    OURS,
    OUTPUT,
    PRIOR,
    PUBLISHED,
    SOURCE,
    STATE_OF_THE_ART,
    STRONGER,
    WHY_NOT_COMPARABLE,
    add_run_arguments,
    add_tables,
    artificial_ipums,
    authors_file,
    banded_adult,
    claim_competitive,
    compared,
    encoded,
    figure,
    folds,
    gain,
    methods,
    wide_range,
)
from _report import Report, mean_and_error, printed, run

from dpglm import PrivacyCalculator
from dpglm.datasets import fetch_table, make_census

# Those that the text names, and the largest of the authors' program, which is above .8.
EPSILONS = [0.05, 0.1, 0.4, 1.6]
ALL_EPSILONS = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
# Largest order of the moments in the authors' program.
MOST_MOMENTS = 32
# Of the way down from zero coefficients to the optimum: "close" leaves no more than this.
CLOSE = 0.1


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
    """Add where the authors' program does not have the guarantee that it claims."""
    epsilon, n_candidates = 0.2, 21
    added, subtracted = leak_of_the_published_selection(
        epsilon, n_candidates, rng, 100_000 if quick else 400_000
    )
    for part, does, ours in (
        (
            "the choice of a step",
            "adds exponential noise to losses of which the least wins, where it must be taken off: "
            f"with {n_candidates} steps at epsilon {epsilon:g} the privacy loss is {added:.2f} "
            f"simulated, {(n_candidates - 1) * epsilon:g} exactly",
            f"{subtracted:.1f} with the sign corrected (test_selection.py: "
            "test_draws_have_their_own_law_and_not_that_of_the_published_code)",
        ),
        (
            "objective perturbation",
            "normalises rows before the ones are appended (norm √2, taken for 1), and leaves the "
            "intercept without penalty",
            "the column of ones counts in the bound, and every coefficient is penalised "
            "(test_perturbation.py: "
            "test_the_claim_bounds_the_exact_densities_and_is_nearly_reached)",
        ),
        (
            "output perturbation",
            "takes the Lipschitz constant for 1, and rows have norm 3; is fitted to all rows, "
            "those of the test fold included",
            "rows are shortened to a public bound; fitted to the training folds "
            "(test_perturbation.py: test_the_claim_bounds_the_shift_and_is_nearly_reached)",
        ),
        (
            "SGD-MA",
            "draws batches of a fixed size and accounts for Poisson samples",
            "Poisson samples, privacy loss distribution "
            "(test_sampling.py: test_batch_sizes_expose_a_sampler_of_fixed_size)",
        ),
    ):
        report.program(part, does=does, ours=ours)


def claim_one_step_of_sgd(report: Report) -> None:
    """Add what a step of SGD costs, by the moments accountant and exactly."""
    paper = printed("lee_kifer.figure2.sgd_iteration")
    n_samples = 48_842
    exact = PrivacyCalculator().epsilon(
        noise_multiplier=4.0, n_iter=1, sampling_rate=1 / math.sqrt(n_samples), delta=DELTA
    )
    least = math.log(1 / DELTA) / MOST_MOMENTS
    report.claim(
        "one step of SGD-MA costs so much by the moments accountant, delta 1e-8",
        paper=paper,
        ours=f"{least:.4f} = ln(1e8)/{MOST_MOMENTS}",
        holds=round(least, 4) == paper.value,
        remark=f"no epsilon below it can be stated with {MOST_MOMENTS} moments; a step really "
        f"costs {exact:.2g} (noise multiplier 4, batches of sqrt n, Adult)",
    )


def claim_best_at_the_least_epsilon(report: Report, name: str, results, epsilon: float) -> None:
    """Add that DP-AGD is the most accurate at the least epsilon, or on BANK that it is not."""
    paper = printed("lee_kifer.figure2.least_epsilon")
    scores = folds(results, "accuracy", epsilon)
    rivals = [*PRIOR, STATE_OF_THE_ART]
    best, mean, error = gain(scores, PUBLISHED, rivals)
    weaker, gap, gap_error = gain(scores, PUBLISHED, [n for n in rivals if n not in STRONGER])
    _, own, own_error = gain(scores, OURS, rivals)
    excepted, first = name == "BANK", mean > 2 * error
    explained = gap + GAMMA[0] >= -2 * math.hypot(gap_error, GAMMA[1])
    report.claim(
        f"{name}, logistic regression, epsilon {epsilon:g}: DP-AGD is "
        + ("not the most accurate" if excepted else "the most accurate"),
        paper=paper.text("BANK is the exception" if excepted else "better than all"),
        ours=f"{mean:+.2f} ±{error:.2f} points against {best}",
        holds=None if excepted else first or (None if explained else False),
        remark=f"{gap:+.2f} ±{gap_error:.2f} against {weaker}, the best of those that are not "
        f"stronger here; our defaults {own:+.2f} ±{own_error:.2f}. "
        + ("To be behind where all are tells of no exception. " if excepted else "")
        + "The majority has "
        f"{scores['majority'].mean():.1f} percent, DP-AGD {scores[PUBLISHED].mean():.1f}. gamma, "
        "which is not printed, is worth {} ±{} at .1 (Figure 1(b))".format(*GAMMA),
    )


def claim_close(report: Report, name: str, results, epsilons: list[float]) -> None:
    """Add that the objective comes close to the optimum over a wide range of epsilon.

    Nothing refutes it, as it is not printed what is close, nor gamma.
    """
    left = {}
    for epsilon in epsilons:
        loss = folds(results, "training_loss", epsilon)
        gap = loss[PUBLISHED] - loss[NOT_PRIVATE]
        left[epsilon] = mean_and_error(gap / (math.log(2) - loss[NOT_PRIVATE].mean()))
    close, where = wide_range(epsilons, [mean <= CLOSE for mean, _ in left.values()])
    report.claim(
        f"{name}, logistic regression: the objective is close to the optimum over a wide range",
        paper="Section 6.3",
        ours="; ".join(f"{e:g}: {100 * m:.0f} ±{100 * s:.0f} %" for e, (m, s) in left.items()),
        holds=close or None,
        remark=f"left of the way from ln 2 to the optimum; at most {CLOSE:.0%} {where}. What is "
        "close is not printed, nor gamma, which is worth half of it and more (below)",
    )


def claim_against_output_perturbation(report: Report, title, results, epsilons) -> None:
    """Add how DP-AGD does against OutPert, of which the text says nothing by name."""
    parts, found = [], {"ahead": [], "behind": [], "no difference": []}
    for epsilon in epsilons:
        _, mean, error = gain(folds(results, "accuracy", epsilon), PUBLISHED, [OUTPUT])
        parts.append(f"{epsilon:g}: {mean:+.2f} ±{error:.2f}")
        differs = abs(mean) > 2 * error
        where = "no difference" if not differs else "ahead" if mean > 0 else "behind"
        found[where].append(f"{epsilon:g}")
    shown = ", ".join(f"{where} at {', '.join(at)}" for where, at in found.items() if at)
    report.claim(
        f"{title}: DP-AGD against {OUTPUT}",
        paper="no sentence; prior algorithms are outperformed (abstract)",
        ours="; ".join(parts),
        holds=None,
        remark="not printed by name, nor are gamma and the penalty; at epsilon .1 also lower "
        f"with the noise of Eq. (3) (below); {shown}",
    )


def claim_sgd_is_best(report: Report, title: str, results, epsilon: float) -> None:
    """Add that SGD-MA is the most accurate at an epsilon above .8.

    It is stronger here itself, so that only a rival that is not can refute it, and nothing confirms
    it.
    """
    scores = folds(results, "accuracy", epsilon)
    others = [PUBLISHED, *PRIOR]
    best, mean, error = gain(scores, STATE_OF_THE_ART, others)
    weaker, gap, gap_error = gain(
        scores, STATE_OF_THE_ART, [other for other in others if other not in STRONGER]
    )
    holds = False if gap < -2 * gap_error else None
    report.claim(
        f"{title}, epsilon {epsilon:g}: SGD-MA is the most accurate",
        paper=printed("lee_kifer.figure2.sgd_ma_from").text("above .8"),
        ours=f"{mean:+.2f} ±{error:.2f} points against {best}",
        holds=holds,
        remark=f"{gap:+.2f} ±{gap_error:.2f} against the best of the others, {weaker}",
        why=WHY_NOT_COMPARABLE if holds is None else "",
    )


def claims_of_instability(report: Report, results, epsilons: list[float]) -> None:
    """Add that the SVM on BANK is less accurate at .4 than at .1, though its objective falls."""
    accuracy, loss = (
        {e: folds(results, metric, e)[PUBLISHED] for e in epsilons}
        for metric in ("accuracy", "training_loss")
    )
    low, high = printed("lee_kifer.figure3.unstable").value
    mean, error = mean_and_error(accuracy[low] - accuracy[high])
    changes = {(a, b): mean_and_error(accuracy[b] - accuracy[a]) for a, b in pairwise(epsilons)}
    dips = [
        f"{b:g} against {a:g}: {fall:+.2f} ±{spread:.2f}"
        for (a, b), (fall, spread) in changes.items()
        if fall < -2 * spread
    ]
    report.claim(
        f"BANK, SVM: less accurate at epsilon {low:g} than at {high:g}",
        paper=printed("lee_kifer.figure3.unstable").text("lower at .4 than at .1"),
        ours=f"{mean:+.2f} ±{error:.2f} points",
        holds=True if mean < -2 * error else None,
        remark="the authors report an unstable run, and print neither gamma nor the penalty; the "
        "noise of their program has the wrong sign. Lower than before here: "
        + (", ".join(dips) or "none"),
    )
    falls = [mean_and_error(loss[b] - loss[a]) for a, b in pairwise(epsilons)]
    report.claim(
        "BANK, SVM: the objective falls with epsilon all the same",
        paper=printed("lee_kifer.figure3.unstable").text("consistently"),
        ours=", ".join(f"{values.mean():.3f}" for values in loss.values()),
        holds=all(mean < 2 * error for mean, error in falls),
        remark=f"hinge loss at epsilon {', '.join(f'{e:g}' for e in epsilons)}",
    )


def tables_of(arguments) -> dict:
    """Return the tables that are at hand, encoded as the paper does where that is known."""
    home = arguments.data_home
    tables = {"Adult": banded_adult(home)} | {name: authors_file(name, home) for name in FILES}
    if tables["BANK"] is None:
        tables["BANK"] = encoded(fetch_table("bank", home))
    if arguments.full and tables["IPUMS-US"] is None:
        tables["IPUMS-US, artificial"] = artificial_ipums()
    return {name: table for name, table in tables.items() if table is not None}


def reproduce(arguments) -> Report:
    if arguments.quick:
        tables = {"census": make_census(1000, random_state=0)}
        losses, epsilons, n_splits, n_repeats = ["logistic"], [0.1, 1.6], 2, 1
    else:
        tables, losses, n_splits = tables_of(arguments), list(LOSSES), 5
        epsilons = ALL_EPSILONS if arguments.full else EPSILONS
        n_repeats = 2 if arguments.full else 1
    report = Report(
        f"DP-AGD against the baselines on {' and '.join(tables)}",
        f"{SOURCE}: Figures 2 and 3 and Section 6.3, at epsilon "
        f"{', '.join(f'{e:g}' for e in epsilons)}; .2 and .8 run with --full. The curves cannot be "
        "read off; the claims are those of the text. A wide range of epsilon, which the paper does "
        "not bound, is here more than half of those tested (exactly half: not comparable), and "
        f"close to the optimum leaves at most {CLOSE:.0%} of the way. Gains are means over the "
        f"same {n_repeats * n_splits} folds ± standard error, where the paper has 100; what is "
        "within two errors is no difference.",
    )
    panels = {
        f"{name}, {LOSSES[loss]}": compared(
            name,
            table,
            methods(loss, np.unique(table[1]), arguments.full),
            epsilons,
            n_splits=n_splits,
            n_repeats=n_repeats,
            seed=arguments.seed,
            n_jobs=arguments.jobs,
            results_file=arguments.results,
            progress=not arguments.quick,
        )
        for name, table in tables.items()
        for loss in losses
    }
    claim_one_step_of_sgd(report)
    report.other_data = arguments.quick
    real = {title: of for title, of in panels.items() if "artificial" not in title}
    for title, results in real.items():
        claim_competitive(report, title, results, epsilons)
        claim_against_output_perturbation(report, title, results, epsilons)
    for title, results in real.items():
        if "logistic" in title:
            name = title.split(",")[0]
            claim_best_at_the_least_epsilon(report, name, results, epsilons[0])
            claim_close(report, name, results, epsilons)
        claim_sgd_is_best(report, title, results, epsilons[-1])
    if "BANK, SVM" in panels:
        claims_of_instability(report, panels["BANK, SVM"], epsilons)
    for name in FILES:
        if name not in tables:
            report.claim(
                f"{name}: panels of both figures",
                paper="Figures 2 and 3",
                ours="not run",
                holds=None,
                remark=f"put the authors' file into the data folder as {FILES[name]}",
            )
    claims_about_the_program(report, np.random.default_rng(arguments.seed), arguments.quick)
    add_tables(report, panels, epsilons)
    report.note(
        "delta = 1e-8, converted by as_published to 1.26 (epsilon 1.6) to 1.63 (epsilon .05) times "
        "the rho of Eq. (5), in favour of DP-AGD; its steps are chosen with Laplace noise, where "
        "Section 3.3 recommends exponential noise (76.8 ±0.6 against 77.0 ±0.5 percent at epsilon "
        ".1, schema adult, 10 fits, measured once apart from this script). The accuracy of the "
        "majority is the same for the SVM. As in the paper, Adult is in 123 columns, and the "
        "authors' file of BANK, where it is at hand, is scaled by its ranges. "
        f"{STATE_OF_THE_ART} is charged by its privacy loss distribution, more tightly than by "
        "moments, and from epsilon .4 on takes 2,000 batches with less noise and longer steps, "
        "where the default takes up to 20,000 (on BANK at 1.6 no worse). DP-AGD with our defaults "
        "has the exponential mechanism at a quarter of the cost, a twentieth of the budget for "
        "choices, momentum, and a whitened space."
    )
    report.note(
        "With a gamma of .5 instead of .1 DP-AGD leaves 93 ±18, 45 ±6, 6 ±0 and 1 ±0 % of the way "
        "on Adult at epsilon .05, .1, .4 and 1.6 (.1 on the same folds, with other noise than "
        "above: 234 ±55, 104 ±11, 17 ±3, 3 ±0), and 80 ±11, 47 ±4, 14 ±1 and 9 ±0 % on BANK (246 "
        "±56, 120 ±22, 24 ±2, 11 ±1): 5 folds, measured once apart from this script."
    )
    report.note(
        "The paper tunes the penalty for each table and does not print it; here it is that of the "
        "program, .001. Ten times that on Adult (schema adult, 10 and 5 fits, measured once apart "
        "from this script) leaves 50 % of the way at epsilon .1 and 19 % at .4; the "
        "accuracy is 77.4 ±0.5 percent against 76.8 ±0.6 at .1, 82.0 ±0.3 against 81.0 ±0.6 at .4, "
        "and lower at 1.6. On BANK (5 folds, likewise) it is nowhere more accurate, by -1.1 ±4.0, "
        "-0.3 ±0.8, -0.1 ±0.2 and -0.7 ±0.1 points (SVM: -0.4 ±1.7, -0.5 ±0.9, -0.1 ±0.2 and -0.7 "
        "±0.2) at .05, .1, .4 and 1.6, and leaves 109, 46, 22 and 15 % of the way. Where it was "
        "tried no verdict changes with it."
    )
    report.note(
        f"{OUTPUT} is that of Zhang et al. (2017), on the logistic and on a smoothed hinge loss. "
        "The paper tunes the number and the size of its steps heavily; here both follow from "
        "public facts: half of the longest step that its bound allows, and as many, up to 1000, as "
        "keep the noise on the score of a row to a standard deviation of a third. On Adult, "
        "logistic regression, epsilon .05, .1 and .4, the best of 10, 30, 100, 300 (and 1000, at "
        ".4) steps is .7, .2 and .1 points better, within the noise (3 fits each, measured once "
        "apart from this script). With the noise of Eq. (3), 1.33 times as much at epsilon .1, it "
        "is ahead of DP-AGD there all the same: by 2.9 ±1.6 (within two errors) and 3.2 ±1.3 "
        "points on Adult (logistic regression, SVM), 2.2 ±0.2 and 1.6 ±0.3 on BANK (the same "
        "folds, likewise)."
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
