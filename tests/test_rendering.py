"""Tables of strings as text and as HTML."""

from dpglm.tables import cell, html_table, text_table

ROWS = [("name", "value"), ("a", "1.5"), ("long name", "10")]


def test_columns_are_aligned_left_where_asked_and_right_elsewhere():
    assert text_table(ROWS) == ["name       value", "a            1.5", "long name     10"]
    both = text_table(iter(ROWS), left=(0, 1), gap=1)
    assert both == ["name      value", "a         1.5", "long name 10"]
    assert text_table(ROWS, left=())[1] == "        a    1.5"


def test_html_has_a_head_and_escapes_every_string():
    html = html_table([("<a>", "b"), ("1 & 2", "3")], caption="x < y")
    assert html == (
        "<table><caption>x &lt; y</caption><thead><tr><th>&lt;a&gt;</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1 &amp; 2</td><td>3</td></tr></tbody></table>"
    )
    assert "caption" not in html_table(ROWS)


def test_numbers_have_six_digits_and_strings_are_themselves():
    assert [cell(1 / 3), cell(40.0), cell("poisson")] == ["0.333333", "40", "poisson"]
