"""The reproduction scripts: what they print agrees with independent computations."""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from dpglm import Constant, DPLogisticRegression
from dpglm.losses import Logistic

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "examples" / "reproduce"


def claims_of(report):
    return {claim.claim: claim for claim in report.claims}


def numbers(text):
    return [float(x) for x in re.findall(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", text)]


def table_of(report, start):
    (table,) = (p for p in report.parts if not isinstance(p, str) and p.title.startswith(start))
    return table


def test_a_claim_is_wrapped_and_escaped_and_what_fails_says_why(script):
    _report = script("_report")
    report = _report.Report("Title", "Authors")
    report.claim("a|b " * 20, paper="x", ours="1.0", holds=True, why="not asked for")
    report.claim("second", paper="y", ours="2*3", holds=False, remark="of a reason")
    report.claim("third", paper="z", ours="4", holds=False, remark="short", why="a long story")
    report.claim("fourth", paper="z", ours="5", holds=False, remark="brief", why="a long story")
    report.table("Measured", ["", "v"], [["row", 0.123456], ["other", 7]])
    text, markdown = str(report), report.markdown(level=3)
    assert max(map(len, text.splitlines())) <= 100
    assert "does not hold: of a" in text and "  row    0.1235\n" in text
    assert "Why not (third; fourth): a long story." in text
    assert markdown.startswith(
        "### Title\n\nAuthors\n\n1 of 4 claims hold. What does not, and why:\n\n"
        "- *second*: of a reason.\n- *third*; *fourth*: a long story.\n\n| claim | paper |"
    )
    assert "| third | z | 4 | does not hold: short |" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert len(rows) == 6 + 4
    assert all(len(re.split(r"(?<!\\)\|", row)) == 6 for row in rows[:6])
    assert "2\\*3" in markdown
    with pytest.raises(ValueError, match="say why"):
        report.claim("fifth", paper="", ours="", holds=False)


def test_two_standard_errors_decide(script):
    none, opposite = "no difference beyond the noise", "the opposite"
    for gain, verdict in ((1.3, ""), (1.0, none), (-1.0, none), (-1.3, opposite)):
        found = script("_report").comparison(gain + np.array([-1.0, 1.0, -1.0, 1.0]))
        assert found == (f"{gain:+.2f} ±{1 / math.sqrt(3):.2f}", not verdict, verdict)


def test_bounds_and_influence_of_hong_match_the_vectors(script, vectors):
    hong = script("hong_bounds")
    for row in vectors("schedules", "hong_T_star"):
        for dynamic, name in ((True, "dyn"), (False, "uniform")):
            if row[f"T_{name}_exact_argmin"] < 1:
                continue
            bound = hong.bounds(row["kappa"], row["alpha"], 0.0, dynamic)
            assert bound.argmin() + 1 == row[f"T_{name}_exact_argmin"]
            assert bound.min() == pytest.approx(row[f"erub_{name}_at_argmin"], rel=1e-9)
    for row in vectors("schedules", "hong_momentum_schedule"):
        q = hong.influence(row["T"], 1 / (1 - row["gamma"]), row["beta"])[::-1]
        np.testing.assert_allclose(q, row["q"], rtol=1e-9)


def test_measured_influence_is_that_of_the_linearised_descent(script):
    hong = script("hong_influence")
    problem = hong.strongly_convex_problem(np.random.default_rng(3))
    plan = hong.plan_for(problem, 1000, 40, Constant(), 0.0)
    measured = hong.measured_influence(problem, plan)
    step, size = plan.step[0], problem.X.shape[1]

    def hessian(coef):
        p = 1 / (1 + np.exp(-problem.X @ coef))
        curved = (problem.X.T * (problem.share * p * (1 - p))) @ problem.X
        return curved + problem.alpha * np.eye(size)

    path = [np.zeros(size)]
    for _ in range(40):
        margins = problem.target * (problem.X @ path[-1])
        gradient = -(problem.share * problem.target / (1 + np.exp(margins))) @ problem.X
        path.append(path[-1] - step * (gradient + problem.alpha * path[-1]))
    response, last = np.eye(size), hessian(path[-1])
    for t in range(39, 14, -1):
        exact = step * np.trace(response.T @ last @ response) / size
        # Noise of iteration t meets the curvature of every iterate after it.
        assert measured[t] == pytest.approx(exact, rel=0.05)
        response = response @ (np.eye(size) - step * hessian(path[t]))


def test_the_bounds_of_hong_hold_and_three_slips_of_the_slides_do_not(
    script, vectors, capsys, tmp_path
):
    hong = script("hong_bounds")
    files = "--markdown", str(tmp_path / "hong.md"), "--figure", str(tmp_path / "hong.png")
    report = hong.main(["--quick", *files])
    assert (tmp_path / "hong.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith(report.title)
    assert (tmp_path / "hong.md").read_text(encoding="utf-8") == report.markdown()
    claims = claims_of(report)
    wrong = [name for name, claim in claims.items() if not claim.holds]
    assert len(claims) == 10 and len(wrong) == 3
    assert all(name.startswith("slides") for name in wrong)
    bounds = table_of(report, "Bounds")
    adult = dict(zip(bounds.columns, bounds.rows[0], strict=True))
    assert (adult["N"], adult["D"], adult["T* unif."]) == ("48842", "124", "478")
    assert float(adult["R"]) == pytest.approx(0.0718514, rel=1e-3)
    known = {row["kappa"]: row for row in vectors("schedules", "hong_T_star") if row["alpha"] < 1}
    for kappa, _, theirs, exact, _, dynamic, dynamic_exact in table_of(report, "T*").rows:
        if int(kappa) in known:
            names = [f"T_{a}_{b}" for a in ("uniform", "dyn") for b in ("formula", "exact_argmin")]
            found = [int(cell) for cell in (theirs, exact, dynamic, dynamic_exact)]
            assert found == [known[int(kappa)][name] for name in names]
    for row in table_of(report, "The package's schedule").rows:
        assert row[1] == "0.0718" and row[3] == row[4]
        assert float(row[5]) > float(row[4])
    fair, theirs = numbers(claims["slides, Algorithm 1: an iteration is run if ρ_t < R_t"].ours)
    assert (fair, theirs) == (63, 64)


def test_the_dynamic_schedule_of_hong_gains_though_its_influence_is_a_bound_only(script):
    hong = script("hong_influence")
    report = hong.main(["--quick"])
    wrong = [claim.claim for claim in report.claims if not claim.holds]
    assert len(report.claims) == 6
    assert wrong == [
        "without momentum the influence decays like γ^(T-t)",
        "with momentum the influence first rises with age, then decays",
    ]
    gamma = 1 - 0.005 / 0.255
    plain, half, heavy = table_of(report, "Influence").rows
    assert float(plain[7]) == pytest.approx(gamma, abs=1e-4)
    assert float(plain[4]) < gamma**2 + 0.005
    # Unit noise that momentum keeps enters with 1 - b, so that q_T shrinks by the square.
    assert float(half[1]) == pytest.approx(0.25 * float(plain[1]), rel=1e-2)
    assert float(heavy[1]) == pytest.approx(0.01 * float(plain[1]), rel=1e-2)


def test_a_slope_and_its_error_are_those_of_weighted_sums(script):
    lecture = script("lecture12")
    rng = np.random.default_rng(0)
    x = np.array([1.0, 2.0, 4.0, 8.0])
    fits = [
        lecture.slope(x, [5 * v**-1.5 * rng.gamma(4.0, 0.25, 50) for v in x]) for _ in range(400)
    ]
    slopes, errors = np.transpose(fits)
    assert slopes.mean() == pytest.approx(-1.5, abs=0.02)
    assert errors.mean() == pytest.approx(slopes.std(), rel=0.15)


def test_the_problems_of_the_lecture_have_the_minima_they_state(script):
    lecture = script("lecture12")
    for row in lecture.rows():
        X, target, share = row.problem.X, row.problem.target, row.problem.share
        assert share.sum() == pytest.approx(1.0)
        smooth = isinstance(row.problem.loss, Logistic)

        def objective(w, X=X, target=target, share=share, alpha=row.problem.alpha, smooth=smooth):
            margin = target * (X @ w)
            losses = np.logaddexp(0, -margin) if smooth else np.maximum(0, 1 - margin)
            return share @ losses + alpha / 2 * w @ w

        assert objective(row.optimum) == pytest.approx(row.minimum, abs=1e-12)
        found = minimize(objective, row.optimum + 0.1, method="Powell", tol=1e-12)
        assert row.minimum <= found.fun + 1e-12
        assert found.fun == pytest.approx(row.minimum, abs=1e-6)


def test_simulated_runs_end_where_the_solver_of_the_package_ends(script):
    lecture = script("lecture12")
    from _descent import excess_risk

    strong = lecture.rows()[2]
    n_samples, n_runs = 240, 60
    plan = strong.plan(n_samples, 0.5)
    counts = np.rint(strong.problem.share * n_samples).astype(int)
    X = np.repeat(strong.problem.X, counts, axis=0)
    target = np.repeat(strong.problem.target, counts)
    problem = lecture.Problem(
        strong.problem.X, strong.problem.target, counts / n_samples, Logistic(), 0.05
    )
    assert len(X) == n_samples
    minimum = problem.value(problem.stationary_point()[None])[0]
    model = DPLogisticRegression(
        epsilon=0.5, delta=lecture.DELTA, alpha=0.05, fit_intercept=False, clip_schedule=1.0,
        noise_schedule=1.0, step_schedule=strong.step, averaging=strong.averaging, momentum=None,
        preconditioner=None, max_iter=plan.n_iter, classes=[-1, 1],
    )  # fmt: skip
    assert (model.plan(n_samples, 16).noise_multiplier == plan.noise_multiplier).all()
    fits = [model.set_params(random_state=k).fit(X, target).coef_[0] for k in range(n_runs)]
    ours = problem.value(np.array(fits)) - minimum
    simulated = excess_risk(problem, minimum, plan, np.random.default_rng(0), 4 * n_runs)
    error = math.hypot(ours.std() / math.sqrt(n_runs), simulated.std() / math.sqrt(4 * n_runs))
    assert ours.mean() == pytest.approx(simulated.mean(), abs=4 * error)
    assert error < 0.1 * simulated.mean()


@pytest.mark.slow
def test_the_lecture_has_its_rates_and_its_amplification_has_not(script, tmp_path):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld

    lecture = script("lecture12")
    claims = claims_of(lecture.main(["--quick", "--figure", str(tmp_path / "lecture.png")]))
    assert (tmp_path / "lecture.png").read_bytes().startswith(b"\x89PNG")
    rates = [claim for name, claim in claims.items() if "excess risk against" in name]
    assert len(rates) == 6 and all(claim.holds for claim in rates)
    for claim, rate in zip(rates, np.repeat([-1, -1, -2], 2), strict=True):
        assert numbers(claim.paper)[-1] == pytest.approx(rate, rel=0.1)
        measured, error = numbers(claim.ours)
        assert measured == pytest.approx(rate, abs=0.1 * abs(rate) + 4 * error)
    assert sum("bound" in name and claim.holds for name, claim in claims.items()) == 3
    accountant = pld.PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000)
    claim = claims["NoisySGD is ρ-zCDP with ρ = γ²L²T/(2σ²)"]
    assert not claim.holds and numbers(claim.paper)[0] == 1.31
    assert numbers(claim.ours)[0] == round(accountant.get_epsilon(1e-5), 2) == 1.83


def test_noise_of_the_heavy_ball_and_cost_of_the_clip_match_the_vectors(script, vectors):
    yu, _report = script("yu_momentum"), sys.modules["_report"]
    report = _report.Report("", "")
    yu.noise_variance(report, np.random.default_rng(0), 100_000)
    yu.decaying_clip(report)
    variance, linear, cost = report.claims
    assert variance.holds and cost.holds and not linear.holds
    for row in vectors("schedules", "momentum_noise_variance"):
        for c, *cells in table_of(report, "Variance").rows:
            if float(c) == row["c"]:
                for cell, t in zip(cells, (1, 2, 5, 20, 100), strict=True):
                    measured, theory = numbers(cell)
                    assert measured == pytest.approx(theory, rel=0.02)
                    if t == row["t"]:
                        assert theory == pytest.approx(row["factor"], abs=6e-4)
    known = {row["T"]: row for row in vectors("schedules", "yu_decaying_clip")}[100]
    _, percent, total = numbers(cost.ours)
    assert percent == round(100 * known["budget_used_after_T_steps"], 1)
    assert total == known["total_steps_until_budget_exhausted"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yu_momentum", "yu_ablation"])
def test_the_gains_of_yu_are_those_of_their_table(script, name, capsys):
    report = script(name).main(["--quick"])
    assert report.title in capsys.readouterr().out
    claims = claims_of(report)
    table = table_of(report, "Accuracy")
    accuracy = {
        name: dict(zip(table.columns[1:], map(float, cells), strict=True))
        for name, *cells in table.rows
    }
    if name == "yu_momentum":
        cells = accuracy["step 1, equal step, constant clip"]
        gain = cells["0.6"] - cells["0"]
        claim = claims["epsilon 2: c = 0.6, equal step 1"]
    else:
        gain = accuracy["momentum"]["step 1"] - accuracy["plain"]["step 1"]
        claim = claims["epsilon 2: momentum helps, every step 1"]
    mean, error = numbers(claim.ours)
    assert mean == pytest.approx(gain, abs=0.11)
    assert claim.holds == (mean > 2 * error)


def test_the_document_has_a_section_for_every_script_and_keeps_those_not_run(script):
    all_scripts = script("all")
    names = [name for names in all_scripts.SCRIPTS.values() for name in names]
    scripts = {path.stem for path in SCRIPTS.glob("[!_]*.py")} - {"all"}
    assert set(names) <= scripts
    document = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    sections = all_scripts.sections_of(document)
    assert list(sections) == names
    assert all_scripts.document(sections) == document
    changed = all_scripts.document({**sections, "lecture12": "<!-- lecture12 -->\nnew\n"})
    assert sections["hong_bounds"] in changed and sections["lecture12"] not in changed
