"""`python -m torchsan` is `torchsan`."""

import sys

from torchsan.cli.main import main

sys.exit(main())
