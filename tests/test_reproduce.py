"""The reproduction scripts: what they print agrees with independent computations."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

from dpglm import DPAGDClassifier
from dpglm.schedules import PublicMetadata

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "examples" / "reproduce"


def claims_of(report):
    return {claim.claim: claim for claim in report.claims}


def numbers(text):
    return [float(x) for x in re.findall(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", text)]


def table_of(report, start):
    (table,) = (p for p in report.parts if not isinstance(p, str) and p.title.startswith(start))
    return table


def test_bounds_and_influence_of_hong_match_the_vectors(script, vectors):
    hong = script("hong_bounds")
    for row in vectors("schedules", "hong_T_star"):
        for dynamic, name in ((True, "dyn"), (False, "uniform")):
            if row[f"T_{name}_exact_argmin"] < 1:
                continue
            bound = hong.bounds(row["kappa"], row["alpha"], dynamic)
            assert bound.argmin() + 1 == row[f"T_{name}_exact_argmin"]
            best = hong.optimal_n_iter(row["kappa"], row["alpha"], dynamic=dynamic)
            assert best == row[f"T_{name}_exact_argmin"]
            assert bound.min() == pytest.approx(row[f"erub_{name}_at_argmin"], rel=1e-9)
    for row in vectors("schedules", "hong_momentum_schedule"):
        q = hong.influence(row["T"], 1 / (1 - row["gamma"]), row["beta"])[::-1]
        np.testing.assert_allclose(q, row["q"], rtol=1e-9)


def test_constants_of_hong_match_the_vectors(script, vectors):
    (row,) = vectors("schedules", "hong_public_constants")
    given = {"alpha": row["lam"], "max_row_norm": row["row_norm"], "mu": math.sqrt(row["R"])}
    metadata = PublicMetadata(row["N"], row["D"], curvature=0.25, **given)
    found = script("hong_bounds").public_constants(metadata)
    assert found == pytest.approx((row["kappa"], row["alpha"]), rel=row["rtol"])


def test_the_bounds_of_hong_hold_and_slips_of_the_slides_stay_open(
    script, vectors, capsys, tmp_path
):
    hong = script("hong_bounds")
    files = "--markdown", str(tmp_path / "hong.md"), "--figure", str(tmp_path / "hong.png")
    report = hong.main(["--quick", *files])
    assert (tmp_path / "hong.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith(report.title)
    assert (tmp_path / "hong.md").read_text(encoding="utf-8") == report.markdown()
    claims = claims_of(report)
    verdicts = [claim.verdict for claim in claims.values()]
    assert [verdicts.count(v) for v in ("holds", "does not", "slip")] == [10, 0, 5]
    bounds = table_of(report, "Best bounds")
    adult = dict(zip(bounds.columns, bounds.rows[0], strict=True))
    assert (adult["N"], adult["D"], adult["T* static"]) == ("48842", "124", "478")
    assert float(adult["R"]) == pytest.approx(0.0718514, rel=1e-3)
    known = {row["kappa"]: row for row in vectors("schedules", "hong_T_star") if row["alpha"] < 1}
    names = [f"T_{a}_{b}" for a in ("uniform", "dyn") for b in ("formula", "exact_argmin")]
    for kappa, _, theirs, exact, _, *dynamic in table_of(report, "T*").rows:
        if row := known.get(int(kappa)):
            assert [int(cell) for cell in (theirs, exact, *dynamic)] == [row[n] for n in names]
    for row in table_of(report, "The package's schedule").rows:
        assert row[1] == "0.0718" and row[3] == row[4]
        assert float(row[5]) > float(row[4])
    _, fair, theirs = numbers(claims["an iteration is run if its request is admitted"].ours)
    assert (fair, theirs) == (63, 64)


def test_the_schedule_of_hong_gains_and_one_that_is_learned_gains_more(script):
    report = script("hong_influence").main(["--quick"])
    assert sum(claim.verdict == "holds" for claim in report.claims) == 7
    for row in table_of(report, "Excess").rows:
        static, dynamic, learned = (numbers(cell)[0] for cell in row[2:])
        assert learned < dynamic < static


def test_the_lecture_has_its_rates_and_keeps_its_bounds(script, tmp_path):
    lecture, picture = script("lecture12"), tmp_path / "lecture.png"
    claims = claims_of(lecture.main(["--quick", "--figure", str(picture)]))
    assert picture.read_bytes().startswith(b"\x89PNG")
    enough = claims["12.2.4: T >= n^2 rho/lambda is enough"]
    rates = [claim for name, claim in claims.items() if "rate of" in name]
    for claim, row in zip(rates, lecture.rows(), strict=True):
        measured = numbers(claim.ours)
        for exponent, found, error in zip(row.slopes, measured[::2], measured[1::2], strict=True):
            assert found == pytest.approx(exponent, abs=0.12 * abs(exponent) + 4 * error)
    held = {name for name, claim in claims.items() if claim.verdict == "holds"}
    assert sum("the bound" in name for name in held) == 4
    assert {name for name in claims.keys() - held if "rate" not in name} == {
        "12.2.4: T >= n^2 rho/lambda is enough", "variance of the noise of a fit"
    }  # fmt: skip
    of_mean, of_sum, balanced = (
        int(x.replace(",", "")) for x in re.findall(r"\d[\d,]*(?= with| \()", enough.ours)
    )
    assert enough.verdict == "slip" and of_sum < balanced < of_mean


def test_the_noise_of_proactive_dp_is_enough_and_breaks_at_fewer_rounds(script):
    proactive = script("proactive")
    report = proactive.main(["--quick"])
    assert [claim.verdict for claim in report.claims] == ["holds"] * 3
    (row,) = table_of(report, "At T").rows
    n_samples, n_iter = int(row[1].replace(",", "")), int(row[3])
    epsilon, k, factor = float(row[0]), proactive.fewest_epochs(n_samples), float(row[8])
    assert (2 * k / math.e) ** 2 - 0.5 == pytest.approx(math.log(n_samples))
    last = round(n_iter / factor)
    assert proactive.exact_epsilon(epsilon, n_samples, k, last) > epsilon
    assert proactive.exact_epsilon(epsilon, n_samples, k, last + 1) <= epsilon
    # A reader's own sum over both halves of a pair that is told apart best, apart from ours.
    k, of_replaced = proactive.fewest_epochs(10**6), {"replaced": True}
    exact = proactive.exact_epsilon(0.5, 10**6, k, math.ceil(4 * k**2), **of_replaced)
    assert exact == pytest.approx(0.534, abs=1e-3)


def test_the_gains_of_yu_are_those_of_their_tables_and_match_the_vectors(script, vectors, capsys):
    report = script("yu_momentum").main(["--quick"])
    assert report.title in capsys.readouterr().out
    claims, theories = claims_of(report), {}
    assert claims["variance of the noise in the direction"].verdict == "holds"
    for c, *cells in table_of(report, "Variance").rows:
        for cell, t in zip(cells, (1, 2, 5, 20, 100), strict=True):
            measured, theories[float(c), t] = numbers(cell)
            assert measured == pytest.approx(theories[float(c), t], rel=0.04)
    rows = vectors("schedules", "momentum_noise_variance")
    known = {(row["c"], row["t"]): row["factor"] for row in rows}
    assert known.keys() & theories.keys()
    for place in known.keys() & theories.keys():
        assert theories[place] == pytest.approx(known[place], abs=6e-4)
    known = {row["T"]: row for row in vectors("schedules", "yu_decaying_clip")}[100]
    _, percent, _, _, total, line = numbers(
        claims["the same noise leaves budget for more steps"].ours
    )
    assert percent == round(100 * known["budget_used_after_T_steps"], 1)
    assert total == known["total_steps_until_budget_exhausted"]
    # The sum of (1 - t/200)^2 for t below 100, and a quarter from there on, reaches 100.
    first = np.square(1 - np.arange(100) / 200).sum()
    assert line == 100 + math.floor((100 - first) * 4)
    constant, falling, *_ = table_of(report, "Accuracy in percent, epsilon 2: what").rows
    plain, both = numbers(constant[1])[0], numbers(falling[2])[0]
    assert numbers(claims["both help"].ours)[0] == pytest.approx(both - plain, abs=0.11)
    assert claims["both help"].verdict == "not run"


def test_the_page_is_made_of_the_appendix_which_has_a_section_for_every_script(script):
    everything, docs = script("all"), ROOT / "docs"
    names = [name for names in everything.SCRIPTS.values() for name in names]
    assert {*names} == {path.stem for path in SCRIPTS.glob("[!_]*.py")} - {"all"}
    written = everything.APPENDIX.read_text(encoding="utf-8")
    sections = everything.sections_of(written)
    assert list(sections) == names and everything.appendix(sections) == written
    template = (SCRIPTS / "page.md").read_text(encoding="utf-8")
    page = (docs / "reproduction.md").read_text(encoding="utf-8")
    assert everything.page(sections, template) == page and len(page.split()) <= 2700
    assert all(f"_static/{name}.png" in page for name in everything.PICTURES)
    for source in everything.SCRIPTS:
        main = [claim for claim in everything.claims_of(source, sections) if "* " in claim[0][:4]]
        assert 1 <= sum(claim[3] != "slip" for claim in main) <= 8


def test_no_verdict_is_a_constant():
    """Nor are both branches of a choice, and what is not run asks first or says why in words."""
    calls = 0
    for path in SCRIPTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("claim", "slip"):
                (verdict,) = [k.value for k in node.keywords if k.arg in ("holds", "wrong")]
                parts = [verdict]
                if isinstance(verdict, ast.IfExp):
                    parts = [verdict.body, verdict.orelse]
                if isinstance(verdict, ast.BoolOp):
                    parts = verdict.values
                assert not any(isinstance(part, ast.Constant) for part in parts), path.name
                calls += 1
    assert calls > 40


def test_the_printed_constants_of_lee_and_kifer_come_out(script):
    printed = script("_report").printed
    one_step = printed("lee_kifer.figure2.sgd_iteration").value
    assert round(math.log(1e8) / 32, 4) == one_step
    plan = DPAGDClassifier.as_published(epsilon=1.0).plan(48842, 123)
    noise = 3.0 / 48842 * plan.noise_multiplier(plan.gradient_cost) * math.sqrt(124)
    assert round(noise, 5) == printed("lee_kifer.table1.noise").value
    model = DPAGDClassifier.as_published()
    assert model.n_splits == printed("lee_kifer.splits").value
    assert model.clip_schedule == model.loss_clip == printed("lee_kifer.clips").value
    for name in ("n_steps", "step_update_every", "step_growth", "max_step", "delta"):
        assert getattr(model, name) == printed(f"lee_kifer.{name}").value


def test_table_1_starts_as_printed_and_its_pseudo_code_slips(script, capsys):
    report = script("lee_kifer_table1").main(["--quick"])
    assert capsys.readouterr().out.startswith(report.title)
    claims = claims_of(report)
    slip = claims["Algorithm 2 averages the second release with the first one normalised"]
    lost, error = numbers(slip.ours)[:2]
    assert slip.verdict == "slip" and lost > 2 * error
    assert any("0.69315 (Table 1), ours 0.69315" in str(part) for part in report.parts)
    assert claims["norm of the first gradient"].verdict == "not run"


@pytest.mark.parametrize(
    ("name", "n_fits"),
    [("lee_kifer_figure1", 26), ("lee_kifer_figures23", 36), ("lee_kifer_figure4", 16)],
)
def test_a_comparison_is_drawn_and_resumes(script, name, n_fits, tmp_path):
    cells, png = tmp_path / "cells.jsonl", tmp_path / "figure.png"
    arguments = ["--quick", "--results", str(cells), "--figure", str(png)]
    first = script(name).main(arguments)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert sum(claim.verdict != "not run" for claim in first.claims) == 2 * ("23" in name)
    lines = cells.read_text().splitlines()
    assert len(lines) == n_fits
    cells.write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:50])
    again = script(name).main(arguments)
    assert again.markdown() == first.markdown()
    assert len(cells.read_text().splitlines()) == n_fits
