"""The adapter for PyTorch, under its public name."""

from privcal.adapters.torch import *  # noqa: F403
from privcal.adapters.torch import __all__ as __all__
