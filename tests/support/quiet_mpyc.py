"""MPyC's own Shamir, imported without what its import does to everybody else.

Importing it reads the command line, which is pytest's here, and sets logging up.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest


def thresha() -> tuple[ModuleType, Any]:
    """`mpyc.thresha`, and its field modulo a prime as a function of the prime."""
    handlers, level = logging.root.handlers[:], logging.root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv[:1])
        pytest.importorskip("mpyc", reason="MPyC is not installed: pip install 'privcal[test]'")
        from mpyc import thresha as module
        from mpyc.finfields import GF
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    return module, GF
