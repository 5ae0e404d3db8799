"""The tests of the operators, as their author wrote them. torchsan checks each of them, because of `addopts`."""

import pixelmath
import pytest
import torch


@pytest.fixture
def image() -> torch.Tensor:
    return torch.arange(64, dtype=torch.uint8).reshape(4, 16)


def test_stretch_goes_from_zero_to_one(image: torch.Tensor) -> None:
    result = pixelmath.stretch(image)
    assert result.dtype == torch.float32
    assert (result.amin(), result.amax()) == (0, 1)


@pytest.mark.torchsan  # So that it fails, should it once not compile anything.
def test_stretch_compiled(image: torch.Tensor) -> None:
    compiled = torch.compile(lambda image: pixelmath.stretch(image) * 255)
    torch.testing.assert_close(compiled(image), pixelmath.stretch(image) * 255)


def test_brightness_is_the_mean(image: torch.Tensor) -> None:
    assert pixelmath.brightness(image).tolist() == [7.5, 23.5, 39.5, 55.5]
