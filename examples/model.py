"""A small model with a preprocessing step that PyTorch 2.13 compiles wrongly: `torch.amin` of bytes.

Run it with `python examples/model.py`: it prints what eager and compiled give, and they differ. Then find out why:
`torchsan run examples/model.py`.
"""

import torch
from torch import nn


class Thumbnails(nn.Module):
    """Scores small grey images: black-level correction on bytes, then a few layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64))
        self.head = nn.Linear(64, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        darkest = torch.amin(pixels, dim=-1, keepdim=True)
        brightness = (pixels - darkest).float() / 255
        return self.head(self.features(brightness))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Thumbnails().eval()
    images = torch.randint(40, 200, (4, 32), dtype=torch.uint8)
    with torch.no_grad():
        eager = model(images)
        compiled = torch.compile(model)(images)
    print("largest difference between eager and compiled:", (eager - compiled).abs().max().item())
