"""One finding by itself: cut out, minimised, written as a script and verified. Importing it imports no torch.

The calls come from the exhibit that a check left in the recording. Nothing in a recording is executed but operators of
PyTorch's own, by name; those of other libraries only once the user has loaded the module that registers them.
"""

from __future__ import annotations
