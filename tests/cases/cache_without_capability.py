"""The key of the compile caches does not know ATEN_CPU_CAPABILITY: code for AVX-512 is run with vectors of AVX2."""

import os
import subprocess
import sys
import tempfile

if "FILL" not in os.environ:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHSAN", "ATEN_CPU"))}
    subprocess.run([sys.executable, __file__], env=plain | {"FILL": "1"}, check=True, stdout=subprocess.DEVNULL)
    os.environ["ATEN_CPU_CAPABILITY"] = "avx2"

import torch


def activate(x):
    return torch.tanh(x) * 2 + x


torch.manual_seed(0)
x = torch.randn(64, 64, dtype=torch.bfloat16)
print("largest difference", (activate(x) - torch.compile(activate)(x)).abs().max().item())
