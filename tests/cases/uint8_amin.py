"""pytorch#191499: amin of uint8 over 16 or more elements returns 0."""

import torch

row = [5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80]
x = torch.tensor(row, dtype=torch.uint8).repeat(4, 1)


def smallest(x):
    return torch.amin(x, -1)


print("eager   ", smallest(x).tolist())
print("compiled", torch.compile(smallest)(x).tolist())
