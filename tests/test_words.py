"""The linter of prose: each rule on a text that breaks it and on one that nearly does."""

import pytest
import words

LONG = " ".join(["word"] * 24)


def of_page(text):
    return [rule for _, rule, _ in words.in_prose(1, text)]


def of_module(text):
    return [rule for _, rule, _ in words.in_python(text)]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("L", f"{LONG}\nand more."),
        ("O", "Fine. Those are the rows."),
        ("D", "The noise is (.5) here."),
        ("B", "[Noise](page.md) has a normal Law."),
        ("N", "It has 1, 2.5, 3e-4 and 1/8."),
    ],
)
def test_finds_what_breaks_a_rule(rule, text):
    assert of_page(text) == [rule]
    assert of_page("- Fine.\n- " + text.replace("\n", "\n  ")) == [rule]
    assert of_module(f'"""Summary.\n\n{text}\n"""') == [rule]
    assert of_module("\n".join(f"    # {line}" for line in text.splitlines())) == [rule]
    assert of_module(f"raise ValueError({text!r})") == [rule]


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG} end.",
        f"{LONG} `a b c d`.",
        f"{LONG}. Word {LONG}",
        f"{LONG}\n    {LONG}\n\n- {LONG}\n- {LONG}",
        "What is a row? Offset and whatever follow.",
        "It is 0.5, v1.5 or `.5`, see [it](a.5.md).",
        "The ROC curve of a lawsuit is `law`; a hat function lies flat.",
        "Wu (2011) has L2 norms, float64, 1, 2 and 3.",
        "| Those | .5 | law |\n|---|---|---|\n",
        "```\nThose laws are .5.\n```\n",
        ">>> law(.5)\n.5",
    ],
)
def test_passes_what_nearly_breaks_a_rule(text):
    assert of_page(text) == []


@pytest.mark.parametrize("start", ["Returns rows", "The rows", "Name of rows", "Bound on rows"])
def test_summaries_are_one_imperative_line(start):
    for text, function, noun in [(start, 1, 0), ("Check, return", 0, 0), ("Return\n rows", 1, 1)]:
        code = f'def f():\n    """{text} now."""\n'
        assert of_module(code) == ["S"] * function
        assert of_module(f"@property\n{code}") == ["S"] * noun
        assert of_module(code.replace("def f()", "class A")) == ["S"] * noun


@pytest.mark.parametrize("call", ["raise ValueError", "raise own.BudgetError", "warnings.warn"])
def test_messages_have_two_sentences_at_most(call):
    assert of_module(f'{call}(f"k={{k:.3g}} is not 1.5, e.g. one. " "Set it to 2.")') == []
    assert of_module(f'{call}(f"k={{k:.3g}} is not 1.5. " "Set it to 2. Or to 3.")') == ["E"]


def test_findings_have_their_lines():
    text = '"""Sum.\n\nIt is .5.\n"""\nx = 1, 2  # 1, 2\nx = 3  # 3, 4\n\n# Fine,\n# and a hat.\n'
    assert [n for n, *_ in words.in_python(f'{text}def f():\n  """Say a law."""')] == [3, 11, 8]
