"""A running federation whose processes die, are slow, or lie."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.trusted.epsilon import NANO
from privcal.trusted.source import Answer

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation.calibrator.panel import Sites
from privcal.transport.federation.site import settings as site
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, SERVER, question
from tests.support.federation_processes import CANARY, NAMES, Federation, until

pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.usefixtures("marks_of_the_sites")]


SLOW = 20  # seconds: processes of the first question share two cores, and perhaps not alone


def answers(panel: Sites, asked: Any, names: Sequence[str] = NAMES) -> dict[str, Any]:
    """Each site's values, or the reason why there are none."""
    return {
        name: tuple(map(float, answer.values)) if isinstance(answer, Answer) else answer.code  # type: ignore[attr-defined]
        for name, answer in panel.ask(names, asked)
    }


def test_a_site_killed_before_during_and_after_its_answer(federation: Federation) -> None:
    before = federation.spent()
    after, late, held = question("kill", 0), question("kill", 1), question("kill", 2)
    with Sites(federation.kits / ANN, timeout=60) as panel:
        first = answers(panel, after)
        assert {type(answer) for answer in first.values()} == {tuple}
        panel._timeout = 15  # they are awake now
        federation.kill("site-4")  # after its answer, before the next
        second = answers(panel, late)
        assert {n for n, a in second.items() if isinstance(a, tuple)} == {*NAMES} - {"site-4"}
        assert second["site-4"] == "late"
        with federation.settings("site-3", delay="60.0"):
            spent = federation.spent()["site-3"]
            there: dict[str, Any] = {}
            asking = threading.Thread(target=lambda: there.update(answers(panel, held, ["site-3"])))
            asking.start()
            until(lambda: federation.spent()["site-3"] > spent, "the charge")
            until(lambda: federation.ledger("site-3").entries()[-1].answered, "the stored answer")
            federation.kill("site-3")
            asking.join()
        assert there == {"site-3": "late"}
    left = federation.spent()
    assert left["site-1"] == before["site-1"] + 2 * after.nano_epsilon
    assert left["site-3"] == before["site-3"] + 3 * after.nano_epsilon
    assert left["site-4"] == before["site-4"] + after.nano_epsilon, "never asked, never charged"
    federation.up("site-3", "site-4")
    with Sites(federation.kits / ANN, timeout=60) as panel:
        assert answers(panel, after) == first
        assert federation.spent() == left, "what was paid for is not paid for again"
        again = answers(panel, held, ["site-3"])["site-3"]
        assert isinstance(again, tuple)
        assert federation.spent() == left
        assert isinstance(answers(panel, late, ["site-4"])["site-4"], tuple)
        assert federation.spent() == {**left, "site-4": left["site-4"] + late.nano_epsilon}


def lines_of(out: Path) -> list[dict[str, Any]]:
    path = out.with_name(out.name + ".campaign") / "answers.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def test_a_server_killed_mid_campaign_and_the_campaign_resumed(
    federation: Federation, tmp_path: Path
) -> None:
    before, out, epsilon = federation.spent(), tmp_path / "map.json", 6.0
    running = federation.calibrate(out, "--site-timeout", 60, epsilon=epsilon)
    until(lambda: len([1 for line in lines_of(out) if "values" in line]) >= 9, "two rounds")
    federation.kill(SERVER)
    unheard = federation.calibrate(tmp_path / "other.json")
    _, said = running.communicate(timeout=240)
    assert running.returncode == 1, said
    assert "Traceback" not in said
    assert "come back free with the same command" in " ".join(said.split())
    assert not out.exists()
    _, said = unheard.communicate(timeout=240)
    assert unheard.returncode == 1, said
    assert "Traceback" not in said
    assert "error: the federation's server cannot be reached" in said
    federation.up()  # the server; the sites find it by themselves
    wrong = federation.calibrate(out, epsilon=2.0)
    assert "with --again" in wrong.communicate(timeout=240)[1]
    resumed = federation.calibrate(out, epsilon=epsilon)
    _, said = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, said
    found = privcal.load_map(out)
    assert found.provenance["answered"] == [4] * 5
    spent = {name: n - before[name] for name, n in federation.spent().items()}
    assert spent == dict.fromkeys(NAMES, parts.round_nano(epsilon)), "exactly epsilon at each"
    assert same_kind_of_map(federation, found.temperature, epsilon)


def same_kind_of_map(federation: Federation, temperature: float, epsilon: float) -> bool:
    """Whether local runs on the same rows spread around this temperature."""
    files = [site.Site.load(federation.site(name)).populations[0].data for name in NAMES]
    scores = [privcal.read_scores(file, person=None) for file in files]
    spread = [
        privcal.calibrate(
            [
                privcal.Source(rows, privcal.Policy(epsilon=epsilon), name=n, ledger=None)
                for n, rows in zip(NAMES, scores, strict=True)
            ],
            "acc-t",
            epsilon=epsilon,
        ).map.temperature
        for _ in range(60)
    ]
    margin = np.ptp(spread) / 2
    return bool(min(spread) - margin <= temperature <= max(spread) + margin)


LIAR = """
import importlib.abc, importlib.util, sys
from pathlib import Path

class Later(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "privcal.transport.federation.shared.messages":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            class Lie:
                def text(self):
                    return Path({lie!r}).read_text()
            honest = module.seal_reply
            def seal(reply, opened, keys, site):
                lying = opened.request.kind == "question"
                return honest(Lie() if lying else reply, opened, keys, site)
            module.seal_reply = seal
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Later())
"""


def lies() -> dict[str, str]:
    def reply(**facts: Any) -> str:
        return parts.spelt({"values": [0], "rows_per_person": 1, "ledger": "0" * 32, **facts})

    return {
        reply(values=[10**15], max_rows=100): "beyond what its rows and the noise can give",
        reply(values=[0, 0]): "its answer is not of the 1 numbers that were asked for",
        reply(values=[float("nan")]): "its reply cannot be read",
        reply(values=[0.5]): "its answer is off the grid",
        reply(rows_per_person=3): "counts 3 rows of a person",
        reply(note=CANARY): "its reply has other parts",
        "hello": "its reply cannot be read",
        parts.spelt({"refused": CANARY}): "it refused with an unknown code",
    }


def test_a_lying_site_and_a_slow_one_are_left_out_and_the_calibration_finishes(
    federation: Federation, tmp_path: Path
) -> None:
    lie = tmp_path / "lie.txt"
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "sitecustomize.py").write_text(LIAR.format(lie=str(lie)))
    federation.kill("site-4")
    federation.up("site-4", path=[overlay])
    try:
        with Sites(federation.kits / ANN, timeout=60) as panel:
            for n, (text, reason) in enumerate(lies().items()):
                lie.write_text(text)
                assert answers(panel, question("lies", n), ["site-4"]) == {"site-4": reason}
        before = federation.spent()
        lie.write_text(next(iter(lies())))
        out = tmp_path / "map.json"
        with federation.settings("site-3", delay="60.0"):
            command = federation.calibrate(out, "--site-timeout", SLOW, "--min-sites", 2, "--json")
            told, said = command.communicate(timeout=240)
        assert command.returncode == 0, said
        assert "left out: site-3 (late" in said
        assert "left out: site-4 (beyond what its rows" in said
        found = privcal.load_map(out)
        assert found.provenance["answered"] == [2] * 5
        assert found.provenance["sources"] == 2
        assert CANARY not in told + said + out.read_text()
        spent = {name: n - before[name] for name, n in federation.spent().items()}
        assert spent["site-1"] == spent["site-2"] == NANO
        assert spent["site-3"] == 0, "too late for the offer: never asked, never charged"
        assert 0 < spent["site-4"] < NANO
    finally:
        federation.kill("site-4")
        federation.up("site-4")


def test_a_site_that_leaves_and_comes_back_does_not_upset_a_resumed_campaign(
    federation: Federation, tmp_path: Path
) -> None:
    """Later questions were asked without it: it stays out, and nobody sees another question."""
    before, out = federation.spent(), tmp_path / "map.json"
    running = federation.calibrate(out, "--site-timeout", SLOW)
    until(lambda: len([1 for line in lines_of(out) if "values" in line]) >= 5, "the first round")
    federation.kill("site-4")
    until(lambda: len([1 for line in lines_of(out) if "left" in line]), "its leaving")
    until(lambda: lines_of(out)[-1].get("values"), "another answer without it")
    running.send_signal(signal.SIGKILL)
    running.communicate()
    federation.up("site-4")
    resumed = federation.calibrate(out)
    _, said = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, said
    assert "left out: site-4 (late" in said
    assert "id_conflict" not in said
    answered = privcal.load_map(out).provenance["answered"]
    assert answered == sorted(answered, reverse=True)
    assert set(answered) == {3, 4}
    spent = {name: n - before[name] for name, n in federation.spent().items()}
    assert {spent[name] for name in NAMES[:3]} == {NANO}
    assert 0 < spent["site-4"] < NANO
