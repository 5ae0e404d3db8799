"""Pages that are text in the style of the report."""

from __future__ import annotations

from tests.samples import finding
from torchsan.report.html.plain import finding as shown
from torchsan.report.html.plain import page, section, table


def test_everything_is_text_and_a_long_table_can_be_filtered() -> None:
    short = table(("what", "A"), [("<b>x</b>", "1\n2")])
    assert '<td data-name="what">&lt;b&gt;x&lt;/b&gt;</td><td data-name="A">1<br>2</td>' in short
    assert "search" not in short
    assert '<input type="search"' in table(("what",), [("x",)] * 20)
    whole = page("a <title>", "", section("<i>", short), shown(finding(message="<img src=x>")))
    assert whole.count("<script>") == 1
    assert "<i>" not in whole
    assert "<img" not in whole
    assert "default-src 'none'" in whole
    assert "F?" in whole


def test_long_names_may_be_broken_and_words_are_not() -> None:
    assert "cpp_<wbr>fused_<wbr>relu" in table(("kernel",), [("cpp_fused_relu",)])
