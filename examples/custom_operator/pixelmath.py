"""Two operators on images of bytes. One of them has a wrong fake kernel: its own tests did not notice."""

import torch


@torch.library.custom_op("pixelmath::stretch", mutates_args=())
def stretch(image: torch.Tensor) -> torch.Tensor:
    """Return the image as float32, each row from 0 to 1."""
    rows = image.float()
    low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    return (rows - low) / (high - low).clamp(min=1)


@stretch.register_fake
def _(image: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(image, dtype=torch.float32)


@torch.library.custom_op("pixelmath::brightness", mutates_args=())
def brightness(image: torch.Tensor) -> torch.Tensor:
    """Return the mean of each row, in float64: sums of many bytes are exact there."""
    return image.double().mean(-1)


@brightness.register_fake
def _(image: torch.Tensor) -> torch.Tensor:
    # Wrong: a program compiled for this reads the doubles as floats.
    return image.new_empty(image.shape[:-1], dtype=torch.float32)
