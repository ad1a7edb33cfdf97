"""Builds `src/privcal/calibration/compiled.c` into the wheel, or in place for an editable install.

Only where there is a C compiler: $CC, or cc. Without one, or where it fails, nothing is said and
the package works with NumPy alone. `CC= pip install .` leaves it out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

# $CFLAGS is not asked: -ffast-math, or a contraction of · and +, would change what the kernel promises.
FLAGS = (
    *("-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden"),
    *("-Wno-psabi", "-g0"),
)


class CompiledKernel(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root, "src", "privcal", "calibration", "compiled.c")
        if version == "editable":
            compile_kernel(source, source.with_name("libcompiled.so"))
            return
        self.folder = tempfile.mkdtemp()
        library = Path(self.folder, "libcompiled.so")
        if compile_kernel(source, library):
            build_data["force_include"][str(library)] = "privcal/calibration/libcompiled.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self.folder)


def compile_kernel(source: Path, library: Path) -> bool:
    """Whether `library` was built from `source`; it is replaced only by a finished one."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    new = library.with_suffix(".new")
    command = [*compiler, *FLAGS, f'-DSOURCE="{digest}"', "-o", str(new), str(source)]
    try:
        if compiler and not subprocess.run(command, capture_output=True).returncode:
            new.replace(library)
            return True
    except OSError:
        pass  # no such compiler
    return False


def _platform() -> str:
    """This machine's, as it is; whether it would do for others is for a release to find out."""
    tags = (tag.platform for tag in sys_tags())
    return next(tag for tag in tags if not tag.startswith(("manylinux", "musllinux")))
