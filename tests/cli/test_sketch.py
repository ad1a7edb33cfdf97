"""The sketch from the command line: taken, saved, merged, shown, read, judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.calibration.sketch import SketchReader
from privcal.calibration.sketch.model import Mixture
from privcal.trusted.question import Question
from tests.cli.test_cli import ACC_T
from tests.support.builders import NEW, a_clinic, a_source, random_scores, save, some_clinics

ESTIMATES = {
    "accuracy", "confidence_before", "confidence_after", "ece_before", "ece_after",
    "brier_before", "brier_after",
}  # fmt: skip


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    return some_clinics(tmp_path, 4)


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return a_clinic(tmp_path / "clean.npz", rows=300, seed=50)


def take(run: Any, folder: Path, name: str, *args: object, new: Any = NEW) -> dict[str, Any]:
    """calibrate --method sketch into NAME.json and NAME-map.json."""
    found: dict[str, Any] = run.json(
        "calibrate", *args, *new, "--method", "sketch",
        "--out", folder / f"{name}-map.json", "--sketch", folder / f"{name}.json",
    )  # fmt: skip
    return found


def check_estimates(said: dict[str, Any], epsilon: float) -> None:
    assert said["measured"] is False
    assert said["epsilon"] == epsilon
    for name in ESTIMATES:
        assert 0 <= said[name]["low"] <= said[name]["value"] <= said[name]["high"] <= 1, name


@pytest.mark.parametrize("secure", [(), ("--aggregation", "secure,alone=1")], ids=str)
@pytest.mark.parametrize("with_public", [False, True])
def test_the_model_is_fitted_once_in_a_run(
    run: Any,
    clinics: list[Path],
    clean: Path,
    with_public: bool,
    secure: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: list[Any] = []
    real = Mixture.fit
    monkeypatch.setattr(Mixture, "fit", lambda *given: fits.append(given) or real(*given))
    public = ("--public", clean) if with_public else ()
    page = ("--html", tmp_path / "page.html")
    said = take(run, tmp_path, "s", *clinics, "--epsilon", 0.6, *public, *secure, *page)
    assert len(fits) == 1
    check_estimates(said["evaluation"], 0.6)


@pytest.mark.parametrize("with_public", [False, True])
@pytest.mark.slow
def test_a_sketch_is_taken_saved_and_read_again(
    run: Any, clinics: list[Path], clean: Path, with_public: bool, tmp_path: Path
) -> None:
    public = ("--public", clean) if with_public else ()
    said = take(run, tmp_path, "s", *clinics, "--epsilon", 0.6, *public)
    assert said["spent"] == {c.stem: 0.6 for c in clinics}
    for clinic in clinics:
        assert privcal.Ledger(f"{clinic}.ledger").nano_spent == 6 * 10**8
    check_estimates(said["evaluation"], 0.6)
    [asked] = said["rounds"]
    saved = privcal.Sketch.load(tmp_path / "s.json")
    assert {e.source: list(e.values) for e in saved.answers} == asked["answers"]
    stdout, _ = run.ok(
        "sketch", "fit", tmp_path / "s.json", *public, "--out", tmp_path / "again.json", "--json"
    )
    again, first = (privcal.load_map(tmp_path / n) for n in ("again.json", "s-map.json"))
    assert again.log_odds == first.log_odds
    assert again.temperature == first.temperature
    assert json.loads(stdout)["evaluation"] == said["evaluation"]
    for more in ((), ("--map", tmp_path / "again.json")):
        stdout, _ = run.ok("evaluate", tmp_path / "s.json", "--private", *public, *more, "--json")
        assert json.loads(stdout) == said["evaluation"]


def test_people_are_told_how_probable_it_is_that_nothing_changed(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    belief = ("--unchanged", 0.4, "--leave-alone")
    rows = ("--rows-per-source", 40)
    said = take(run, tmp_path, "s", *clinics, "--epsilon", 0.9, *belief, *rows)
    found, map = said["evaluation"], privcal.load_map(tmp_path / "s-map.json")
    assert map.provenance["options"] == {
        "rows_per_source": 40.0, "unchanged": 0.4, "leave_alone": True,
    }  # fmt: skip
    assert said["unchanged"] == found["unchanged"] == map.unchanged
    assert found["unchanged_before"] == map.provenance["unchanged_before"] == 0.4
    words = found["unchanged_in_words"]
    assert words.startswith("The probability that nothing changed is ")
    assert "(believed beforehand: 40 %)." in words
    assert ("The model was left as it is." in words) == found["left_alone"]
    sketch = tmp_path / "s.json"
    for command in (
        ("sketch", "fit", sketch, "--out", tmp_path / "m.json"),
        ("evaluate", sketch, "--private"),
    ):
        stdout, _ = run.ok(*command, *belief)
        assert words in " ".join(stdout.split())
        stdout, _ = run.ok(*command)  # nobody thought of it, reading
        assert "nothing changed" not in stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((*ACC_T, "--leave-alone"), "--leave-alone is for methods like sketch, not for acc-t"),
        ((*ACC_T, "--unchanged", 0.2), "--unchanged is for methods like sketch, not for acc-t"),
        (
            (*ACC_T, "--rows-per-source", 9),
            "--rows-per-source is for methods like sketch, not for acc-t",
        ),
        (("--method", "sketch", "--rows-per-source", 0), "rows_per_source must be above 0"),
        (("--method", "sketch", "--unchanged", 1), "unchanged must be a probability"),
        (("--method", "sketch", "--leave-alone", "--unchanged", 0), "leave_alone needs unchanged"),
        (
            ("--method", "sketch", "--unchanged", 0.2, "--option", "unchanged=0.3"),
            "unchanged is given twice: with --unchanged and with --option",
        ),
    ],
)
def test_what_is_wrong_with_a_belief_is_said_before_there_is_a_ledger(
    run: Any, clinics: list[Path], tmp_path: Path, options: tuple[object, ...], says: str
) -> None:
    assert says in run.fails("calibrate", *clinics, *NEW, *options, "--out", tmp_path / "m.json")
    assert not list(tmp_path.glob("*.ledger"))


def test_beliefs_are_for_reading_a_sketch(run: Any, clinics: list[Path]) -> None:
    for option in (("--unchanged", 0.2), ("--leave-alone",)):
        stderr = run.fails("evaluate", clinics[0], *option)
        assert "are for reading a sketch, with --private" in stderr


def test_people_are_told_that_nothing_was_measured(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "m.json", "--sketch", tmp_path / "s.json")
    picture = tmp_path / "r.svg"
    stdout, _ = run.ok(
        "calibrate", *clinics, *NEW, "--method", "sketch", "--epsilon", 0.001, *out,
        "--plot", picture,
    )  # fmt: skip
    assert "estimated under ε = 0.001, not measured" in stdout
    assert "temperature" not in stdout  # it is a curve
    assert "<svg" in picture.read_text()
    # 160 rows under noise of standard deviation 1414 in each number of each source: one run in
    # forty the noise alone looks like data, so what is said must follow what was found.
    clear = privcal.Sketch.load(tmp_path / "s.json").fit().informative
    assert ("The noise drowned the data" in stdout) == (not clear)
    for args in (
        ("evaluate", tmp_path / "s.json", "--private", "--plot", tmp_path / "e.png"),
        ("sketch", "fit", tmp_path / "s.json", "--out", tmp_path / "f.json", "--plot",
         tmp_path / "f.pdf"),
    ):  # fmt: skip
        stdout, _ = run.ok(*args)
        assert "estimated under ε = 0.001, not measured" in stdout
        assert ("The noise drowned the data" in stdout) == (not clear)
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_sketches_of_two_campaigns_are_merged_once_and_shown(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text("epsilon = 2\n")
    policy = ("--policy", tmp_path / "p.toml", "--model", "net")
    take(run, tmp_path, "a", *clinics[:3], *policy, "--epsilon", 0.1, "--campaign", "spring")
    take(run, tmp_path, "b", *clinics[2:], *policy, "--epsilon", 0.2, "--campaign", "autumn")
    a, b, whole = (tmp_path / n for n in ("a.json", "b.json", "all.json"))
    stdout, _ = run.ok("sketch", "merge", a, b, "--out", whole, "--json")
    assert json.loads(stdout) == {
        "out": str(whole),
        "answers": 5,
        "totals": 0,
        "spent": {"clinic-0": 0.1, "clinic-1": 0.1, "clinic-2": 0.3, "clinic-3": 0.2},
    }  # fmt: skip
    for clinic, spent in json.loads(stdout)["spent"].items():
        assert privcal.Ledger(tmp_path / f"{clinic}.npz.ledger").nano_spent / 1e9 == spent
    before = whole.read_bytes()
    stderr = run.fails("sketch", "merge", whole, b, "--out", tmp_path / "more.json")
    assert f"{b}: the answer of 'clinic-2'" in stderr
    assert "already merged" in stderr
    assert not (tmp_path / "more.json").exists()
    run.ok("sketch", "merge", b, a, "--out", tmp_path / "other.json")
    assert (tmp_path / "other.json").read_bytes() == before
    stdout, _ = run.ok("sketch", "show", whole)
    assert "clinic-2 answered 2 times, for ε = 0.3 in all" in stdout
    assert "model: net" in stdout
    assert "not counts" in stdout
    said = run.json("sketch", "show", whole)
    # The noise of a total is that of the sum of five answers: 2/ε² each.
    assert said["noise_deviation"] == pytest.approx(np.sqrt(3 * 2 / 0.1**2 + 2 * 2 / 0.2**2))
    rows = [e.values for e in privcal.Sketch.load(whole).answers]
    totals = said["noisy_totals"]["wrong"] + said["noisy_totals"]["right"]
    assert totals == pytest.approx(np.sum(rows, axis=0))


def test_binary_probabilities_go_from_a_table_of_hospitals_to_a_calibrated_one(
    run: Any, tmp_path: Path
) -> None:
    # A risk score of death: overconfident, one row for each patient, 20 hospitals.
    rng = np.random.default_rng(5)
    logit = rng.normal(-1.0, 2.0, 3000)
    died = rng.random(3000) < 1 / (1 + np.exp(-0.5 * logit))
    risk = 1 / (1 + np.exp(-logit))
    frame = pl.DataFrame(
        {
            "hospital": [f"H{i % 20}" for i in range(3000)],
            "probability": risk,
            "label": died.astype(int),
        }
    )
    frame.write_csv(tmp_path / "icu.csv")
    said = take(run, tmp_path, "icu", tmp_path / "icu.csv", "--source-column", "hospital")
    assert set(said["spent"]) == {f"H{i}" for i in range(20)}
    assert set(said["spent"].values()) == {1.0}
    check_estimates(said["evaluation"], 1.0)
    run.ok(
        "apply", tmp_path / "icu-map.json", tmp_path / "icu.csv", "--out", tmp_path / "o.csv",
        "--probabilities",
    )  # fmt: skip
    after = pl.read_csv(tmp_path / "o.csv")
    correct = (risk > 0.5) == died
    own = np.maximum(risk, 1 - risk)
    assert privcal.ece(own, correct) > 0.08
    # 3000 rows of 20 hospitals: noise of standard deviation 6 in totals of hundreds.
    assert privcal.ece(after["confidence"].to_numpy(), correct) < 0.05
    assert said["evaluation"]["accuracy"]["value"] == pytest.approx(correct.mean(), abs=0.05)
    assert said["evaluation"]["ece_before"]["value"] == pytest.approx(
        privcal.ece(own, correct), abs=0.05
    )
    both = after.select("probability_0", "probability_1").to_numpy()
    assert both.sum(axis=1) == pytest.approx(1)
    assert (both.argmax(axis=1) == (risk > 0.5)).all()


def test_rows_of_one_person_widen_the_noise_that_is_reckoned_with(run: Any, tmp_path: Path) -> None:
    clinics = [
        a_clinic(tmp_path / f"c{i}.npz", seed=i, person=[f"p{j // 3}" for j in range(40)])
        for i in range(3)
    ]
    (tmp_path / "p.toml").write_text("epsilon = 3\nrows_per_person = 3\n")
    new = ("--new-ledger", "--person", "person")
    said = take(run, tmp_path, "s", *clinics, "--policy", tmp_path / "p.toml", new=new)
    saved = privcal.Sketch.load(tmp_path / "s.json")
    assert [e.rows_per_person for e in saved.answers] == [3, 3, 3]
    assert said["map"]["provenance"]["rows_per_person"] == 3
    assert privcal.load_map(tmp_path / "s-map.json").log_odds == saved.fit().map.log_odds


def test_a_source_that_refuses_is_not_in_the_sketch(
    run: Any, clinics: list[Path], tmp_path: Path
) -> None:
    privcal.create_ledgers(clinics[1], privcal.Policy(0.1), per_row=True)
    said = take(run, tmp_path, "s", *clinics)
    assert list(said["dropped"]) == ["clinic-1"]
    saved = privcal.Sketch.load(tmp_path / "s.json")
    assert [e.source for e in saved.answers] == ["clinic-0", "clinic-2", "clinic-3"]
    assert said["spent"]["clinic-1"] == 0.0


def test_nothing_the_commands_say_carries_the_number_of_rows(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the noise replaced by constants, everything must be the same for 7 and for 700 rows.
    monkeypatch.setattr(
        "privcal.trusted.source.add_noise", lambda total, sensitivity, nano: [10**7] * len(total)
    )
    heard = []
    for rows in (7, 700):
        folder = tmp_path / str(rows)
        folder.mkdir()
        monkeypatch.chdir(folder)
        a_clinic(folder / "clinic.npz", rows=rows, seed=rows)
        args = ("--method", "sketch", "--campaign", "c", "--out", "m.json", "--sketch", "s.json")
        _, said, _ = run("calibrate", "clinic.npz", *NEW, *args)
        id = privcal.Ledger("clinic.npz.ledger").id.encode()  # random, and no count
        heard.append([said, Path("s.json").read_bytes().replace(id, b"")])
        for command in (("show", "s.json"), ("fit", "s.json", "--out", "f.json")):
            heard[-1].append(run("sketch", *command)[1])
        heard[-1].append(Path("f.json").read_bytes())
    assert heard[0] == heard[1]


def test_an_interrupted_write_is_finished_without_paying_again(
    run: Any, clinics: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*clinics, "--method", "sketch", "--out", tmp_path / "m.json", "--sketch", tmp_path / "s.json")  # fmt: skip

    def full(self: object, path: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(privcal.Sketch, "save", full)
        code, _, stderr = run("calibrate", *args, *NEW)
    assert code == 1
    assert "come back free with the same command" in stderr
    run.ok("calibrate", *args, *NEW)
    assert privcal.Sketch.load(tmp_path / "s.json").spent == {c.stem: 1.0 for c in clinics}
    assert privcal.Ledger(f"{clinics[0]}.ledger").nano_spent == 10**9


CALIBRATE = ("calibrate", "good.npz", *NEW, "--out", "m.json")
SKETCH = (*CALIBRATE, "--method", "sketch")
BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "public scores for another method": (
        (*CALIBRATE, *ACC_T, "--public", "clean.npz"), "--public is for methods like sketch, not for acc-t"),
    "a sketch of another method": ((*CALIBRATE, *ACC_T, "--sketch", "n.json"), "--sketch is for"),
    "a picture for another method": ((*CALIBRATE, *ACC_T, "--plot", "new.png"), "--plot is for"),
    "another method's option": ((*SKETCH, "--option", "bins=3"), "has no option 'bins'"),
    "a sketch in the map's place": ((*SKETCH, "--sketch", "m.json"), "written twice"),
    "a sketch in a source's place": ((*SKETCH, "--sketch", "good.npz"), "good.npz is an input"),
    "a sketch in the public scores' place": (
        (*SKETCH, "--public", "clean.npz", "--sketch", "clean.npz"), "clean.npz is an input"),
    "a sketch in the policy's place": (
        (*SKETCH, "--policy", "p.toml", "--sketch", "p.toml"), "p.toml is an input"),
    "no folder for the sketch": ((*SKETCH, "--sketch", "none/s.json"), "cannot write none/s.json"),
    "no folder for the picture": ((*SKETCH, "--plot", "none/p.png"), "cannot write none/p.png"),
    "a picture of unknown kind": ((*SKETCH, "--plot", "p.doc"), "must end in .png"),
    "no such public scores": ((*SKETCH, "--public", "none.npz"), "there is no file none.npz"),
    "too few public scores": ((*SKETCH, "--public", "few.npz"), "at least 50 rows, not 20"),
    "public scores of another model": (
        (*SKETCH, "--public", "three.npz"), "the public set has scores of 3 classes"),
    "a source as public scores": (
        (*SKETCH, "clean.npz", "--public", "clean.npz"), "clean.npz is a source"),
    "a sketch measured": (("evaluate", "sketch.json"), "say --private"),
    "scores estimated": (("evaluate", "good.npz", "--private"), "holds scores, not a sketch"),
    "a map estimated": (("evaluate", "map.json", "--private"), "is not a privcal sketch"),
    "public scores for a measurement": (
        ("evaluate", "good.npz", "--public", "clean.npz"), "with --private"),
    "a sketch read with public scores": (
        ("evaluate", "sketch.json", "--private", "--public", "clean.npz"), "taken without public"),
    "a temperature judged by a sketch": (
        ("evaluate", "sketch.json", "--private", "--map", "map.json"), "map.json is not one"),
    "bins out of range": (("evaluate", "sketch.json", "--private", "--bins", "0"), "bins must be"),
    "a picture in the sketch's place": (
        ("evaluate", "sketch.png", "--private", "--plot", "sketch.png"), "is an input"),
    "a sketch merged with itself": (
        ("sketch", "merge", "sketch.json", "sketch.json", "--out", "n.json"), "already merged"),
    "a merged sketch in an input's place": (
        ("sketch", "merge", "sketch.json", "--out", "sketch.json"), "is an input"),
    "no such sketch": (("sketch", "show", "none.json"), "cannot read sketch none.json"),
    "a map shown as a sketch": (("sketch", "show", "map.json"), "map.json is not a privcal sketch"),
    "a sketch cut short": (("sketch", "fit", "cut.json", "--out", "n.json"), "cut.json is not"),
    "a fitted map in the sketch's place": (
        ("sketch", "fit", "sketch.json", "--out", "sketch.json"), "is an input"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_2_and_costs_nothing(
    what: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_clinic(tmp_path / "good.npz")
    a_clinic(tmp_path / "clean.npz", rows=200, seed=3)
    a_clinic(tmp_path / "few.npz", rows=20, seed=3)
    save(tmp_path / "three.npz", random_scores(200, classes=3))
    Path("p.toml").write_text("epsilon = 1\n")
    privcal.TemperatureMap(2.0).save("map.json")
    query = SketchReader.of().query
    one = a_source().answer(Question.of(query, 1.0, "c")).values
    sketch = privcal.Sketch.of(query, {"s": one.tolist()}, {}, 10**9, asker="local", campaign="c")
    sketch.save("sketch.json")
    sketch.save("sketch.png")
    Path("cut.json").write_bytes(Path("sketch.json").read_bytes()[:200])
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    args, says = BAD[what]
    stderr = run.fails(*args)
    assert stderr.startswith("error: ")
    assert says in stderr
    assert stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("command", ["merge", "show", "fit"])
def test_every_command_shows_an_example(run: Any, command: str) -> None:
    stdout, _ = run.ok("sketch", command, "--help")
    assert f"privcal sketch {command} " in stdout


def test_help_says_that_public_rows_get_no_privacy(run: Any) -> None:
    for command in (("calibrate",), ("sketch", "fit"), ("evaluate",)):
        _, stdout, _ = run(*command, "--help")
        said = " ".join(stdout.replace("│", " ").split())
        assert "These rows get no privacy: the map depends on them exactly" in said


def test_class_offsets_are_refused_before_anybody_is_charged(
    run: Any, clinics: list[Path], clean: Path, tmp_path: Path
) -> None:
    given = (
        *("calibrate", *clinics, *NEW, "--method", "sketch", "--public", clean),
        *("--option", "class_offsets=true", "--out", tmp_path / "map.json"),
    )
    stderr = run.fails(*given)
    assert "class_offsets needs a resolution of 100, and this run has 42" in stderr  # 30 · √2
    assert "more rows than was guessed, say so (rows_per_source)" in stderr
    assert not (tmp_path / "map.json").exists()
    for clinic in clinics:
        assert privcal.Ledger(f"{clinic}.ledger").nano_spent == 0
    for name in ("--sketch", "--plot"):
        stderr = run.fails(*given, name, tmp_path / "kept.png")
        assert f"no sketch is kept with class_offsets: leave out that or {name}" in stderr


def test_the_map_before_any_answer_costs_nothing_and_lowers_confidence(
    run: Any, tmp_path: Path
) -> None:
    out, _ = run.ok("sketch", "prior", "--out", tmp_path / "map.json", "--json")
    map = privcal.load_map(tmp_path / "map.json")
    assert json.loads(out)["map"] == map.to_dict()
    assert map.private
    assert map.provenance["epsilon_per_source"] == 0
    claimed = np.array([0.8, 0.9, 0.99])
    assert (map.confidence(probabilities=claimed) < claimed).all()
