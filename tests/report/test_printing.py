"""Lines fit the terminal, and what people copy from it stays whole."""

from __future__ import annotations

import pytest

from torchsan.report.printing import wrapped


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "text",
    [
        "    in:      kernel cpp_fused_relu_0, buffer buf1, graph 0 inference, stage kernel",
        "      0  cpp_fused__to_copy_amin_div_sub_0   model.py:20  darkest = torch.amin(pixels, dim=-1)  <- F1",
        "next: torchsan explain race   as a script: torchsan repro runs/1 F1   as a page: torchsan open runs/1",
        "torchsan: findings: 1 error; 4 of 4 kernels, 4 of 4 buffers, 1 of 1 call checked by values",
    ],
)
def test_a_line_fits_the_terminal_and_loses_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width).split("\n")
    assert "".join(" ".join(lines).split()) == "".join(text.split())
    assert all(len(line) <= width or " " not in line.strip() for line in lines)


def test_what_has_a_label_goes_on_below_its_text_and_commands_stay_whole() -> None:
    assert wrapped("    ops:     aten.relu.default, aten.amin.default, aten.div.Tensor", 50).split("\n") == [
        "    ops:     aten.relu.default, aten.amin.default,",
        "             aten.div.Tensor",
    ]
    assert wrapped("recording: runs/1   again: torchsan report runs/1", 45).split("\n") == [
        "recording: runs/1",
        "    again: torchsan report runs/1",
    ]
    path = "a/" * 40
    assert path in wrapped(f"recording: {path} and more", 60).split("\n")[1]
