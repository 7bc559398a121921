"""``python -m dpglm plan``: what it prints, what it answers, what it refuses."""

import math
import re

import pytest

from dpglm import DPAGDClassifier, DPLinearSVM, DPLogisticRegression
from dpglm.estimators.defaults import N_ITER
from dpglm.privacy.gaussian import gdp_mu
from dpglm.schema import NumericColumn, Schema, Target
from dpglm.study.cli import main


@pytest.fixture
def plan(capsys):
    def run(arguments):
        assert main(["plan", *arguments.split()]) == 0
        printed, errors = capsys.readouterr()
        assert errors == ""
        return printed

    return run


def section(printed, title):
    return printed.split(f"\n{title}")[1].split("\n\n")[0].splitlines()[1:]


def value_of(printed, label):
    (text,) = re.findall(rf"^  {re.escape(label)}(.*(?:\n {{12,}}.*)*)", printed, re.M)[:1]
    return " ".join(text.split())


def table_of(printed, title):
    table = "\n".join(section(printed, title)).split("\n  (")[0]
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]


def test_the_default_plan_is_that_of_the_default_estimator(plan):
    printed = plan("--epsilon 1 --delta 1e-6 --n 48842")
    made = DPLogisticRegression(epsilon=1.0, delta=1e-6).plan(48842, 100)
    assert printed.startswith("DPLogisticRegression on 48,842 records, 100 features, 2 classes.")
    assert value_of(printed, "epsilon") == "1"
    assert value_of(printed, "delta") == "1e-06 = 0.049 / 48,842"
    assert value_of(printed, "in other units") == "mu 0.2367 (GDP), rho 0.02801 (zCDP)"
    for release in made.first:
        noise = f"noise multiplier {release.noise_multiplier:.4g}, for {release.purpose}"
        printed_words = " ".join(value_of(printed, f"first, {release.name}").split())
        assert printed_words == f"{100 * release.fraction:.3g}% of the budget, {noise}"
    names = [release.name for release in made.first]
    assert names == ["magnitude histogram", "second moment"]
    z = made.noise_multiplier[0]
    gradients = f"noise multiplier {z:.4g} each, for the descent"
    assert value_of(printed, f"{N_ITER} gradients") == gradients
    noise = 100 * math.sqrt(101) * z / 48842
    of_mean = noise / math.sqrt(N_ITER)
    assert value_of(printed, "noise on a mean gradient") == (
        f"{noise:.3g}% of the clip, as a norm over 101 coordinates; {of_mean:.3g}% on the mean "
        "of all iterations"
    )
    assert value_of(printed, "signal per direction") == ", n mu / d 114.5 for all d = 101 columns"
    # The consequences in words are those of the trade-off.
    mu = gdp_mu(1.0, 1e-6)
    guess = 50 * (1 + math.erf(mu / math.sqrt(8)))
    assert f"a probability of {guess:.1f}% at most" in value_of(printed, "in plain words")
    replaced = value_of(printed, "the same run under replace_one").removeprefix("epsilon ")
    assert gdp_mu(float(replaced), 1e-6) == pytest.approx(2 * mu, rel=1e-3)


def test_alternatives_are_plans_of_their_own(plan):
    printed = plan("--epsilon 1 --n 9000 --estimator svm --features 20 --classes 3 --n-iter 60")

    def multiplier(**change):
        model = DPLinearSVM(**{"epsilon": 1.0, "max_iter": 60, **change})
        return model.plan(9000, 20, 3).noise_multiplier[0]

    _, *rows = table_of(printed, "ALTERNATIVES")
    expected = {
        "this plan": {},
        "half of epsilon": {"epsilon": 0.5},
        "twice epsilon": {"epsilon": 2.0},
        "replace_one": {"neighboring_relation": "replace_one"},
    }
    assert [row[0] for row in rows] == list(expected)
    for name, shown, noise in rows:
        z, factor = multiplier(**expected[name]), 2.0 if name == "replace_one" else 1.0
        relative = 100 * math.sqrt(21 * 3) * factor * z / 9000
        assert shown == f"{z:.4g}"
        assert noise == f"{relative:.3g}% of the clip"


def test_a_sampled_plan_tells_of_batches(plan):
    pytest.importorskip("dp_accounting")
    printed = plan("--epsilon 0.4 --delta 1e-4 --n 10000 --sampling-rate 0.02 --n-iter 100")
    assert value_of(printed, "epochs") == "2"
    assert value_of(printed, "records in a batch") == "200 expected, give or take 14"
    assert "mu" not in section(printed, "BUDGET")[3]
    made = DPLogisticRegression(epsilon=0.4, delta=1e-4, sampling_rate=0.02, max_iter=100)
    z = made.plan(10_000, 100).noise_multiplier[0]
    expected = f"noise multiplier {z:.4g} each, for the descent"
    assert value_of(printed, "100 gradients") == expected
    noise = 100 * math.sqrt(101) * z / 200
    assert value_of(printed, "noise on a mean gradient").startswith(f"{noise:.3g}% of the clip")


def test_an_adaptive_plan_tells_what_its_filter_affords(plan):
    printed = plan("--epsilon 1 --n 9000 --estimator agd --features 20")
    made = DPAGDClassifier(epsilon=1.0).plan(9000, 20)
    z = made.noise_multiplier(made.gradient_cost)
    gradient = f"noise multiplier {z:.4g}, clip {made.clip[0]:.4g}"
    assert value_of(printed, "a gradient, at first") == gradient
    noise = 100 * math.sqrt(21) * z / 9000
    assert value_of(printed, "noise on a mean gradient").startswith(f"{noise:.3g}% of the clip")
    assert value_of(printed, "a choice of a step") == f"epsilon {made.selection_epsilon:.4g}"
    assert value_of(printed, "affords at most").startswith("40 iterations (max_iter is 40)")
    assert [row[0] for row in table_of(printed, "ALTERNATIVES")[1:]][-1] == "replace_one"
    whitened = plan("--epsilon 1 --n 9000 --estimator agd --preconditioner full --n-iter 7")
    assert value_of(whitened, "first, second moment").startswith("15% of the budget, noise mul")
    assert "max_iter is 7" in whitened


def test_weak_budgets_are_warned_of(plan):
    assert "WARNING" not in plan("--epsilon 1 --n 9000")
    large, few = plan("--epsilon 1 --n 9000 --delta 1e-3"), plan("--epsilon 1 --n 10")
    assert "releasing a record outright" in value_of(large, "WARNING")
    assert "The budget is too small" in value_of(few, "WARNING")


def test_a_guess_of_the_accuracy_is_answered_by_rows_of_a_schema(plan, tmp_path):
    columns = [NumericColumn(f"x{k}", 0, 1, n_segments=1) for k in range(12)]
    schema = Schema("guessed", columns, Target("y", ["no", "yes"]))
    (tmp_path / "s.json").write_text(schema.to_json())
    bare = f"--epsilon .5 --n 2000 --schema {tmp_path / 's.json'} --features 3"
    printed = plan(f"{bare} --accuracy .8 --majority .6")
    assert "on 2,000 records, 12 features, 2 classes" in printed
    # Encoded rows carry their bound: no release finds their units first.
    assert printed.count("  first, ") == 1
    accuracy, cost, error = map(float, re.findall(r"0\.\d+", value_of(printed, "with privacy")))
    assert 0.6 < accuracy < 0.8 and error < 0.02 and 0 < cost < 0.02
    assert "EXPECTED" not in plan(bare)
