"""Tables of strings as text and as HTML."""

from dpglm.tables import Page

ROWS = [("name", "value"), ("a", "1.5"), ("long name", "10")]


def test_numbers_are_aligned_right():
    assert str(Page(("", ROWS))) == "name       value\na            1.5\nlong name     10"


def test_html_has_a_head_and_escapes_every_string():
    assert Page(("x < y", [("<a>", "b"), ("c & d", "3")])).html() == (
        "<p><b>x &lt; y</b></p><table><tr><th>&lt;a&gt;</th><th class=n>b</th></tr>"
        "<tr><td>c &amp; d</td><td class=n>3</td></tr></table>"
    )
