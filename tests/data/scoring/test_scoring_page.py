"""What docs/scoring.md shows, done in its order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("skl2onnx")
pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

PAGE = Path(__file__).parents[3] / "docs" / "scoring.md"


def test_the_page_can_be_followed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kits" / "hospital-1" / "local").mkdir(parents=True)
    said = []
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), {})
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line)
            assert program == "privcal"
            out, _ = run.ok(*words)
            said.append(out)
    assert len(said) == 4
    assert "probabilities of died, survived" in said[0]
    [name] = re.findall(r"model (sha256:[0-9a-f]{64})", said[0])
    assert name in said[3]
