"""Methods of other packages, with their maps: the entry points of group `privcal.methods`.

An entry point names a module, or something in it; importing it registers the method
(`privcal.methods.register`) and, where it has one, its kind of map (`privcal.maps.register`).
"""

from __future__ import annotations

import warnings
from threading import RLock

GROUP = "privcal.methods"

_lock = RLock()
_loaded = False


def load() -> None:
    """Import all entry points of the group, once; one that fails is a warning and no more."""
    global _loaded
    with _lock:  # reentrant: a plugin may ask for the names of methods while it is imported
        if _loaded:
            return
        _loaded = True
        from importlib.metadata import entry_points  # not needed by whoever imports scores alone

        for entry in entry_points(group=GROUP):
            try:
                entry.load()
            except (Exception, SystemExit) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())  # in one line
                package = "" if entry.dist is None else f" of package {entry.dist.name}"
                warnings.warn(
                    f"the method {entry.name!r}{package} is left out, because loading it failed: "
                    f"{reason}",
                    stacklevel=2,
                )
