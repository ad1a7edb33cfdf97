"""Setting a site up: its settings, its keys, its ledgers, and the commands for its owner."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data import opening
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.queries import CellHistogram, Gap
from privcal.trusted.question import Question

pytest.importorskip("cryptography", reason="needs cryptography: pip install privcal[secure]")

from privcal.transport import keys
from privcal.transport.keys import CARD, Keys
from privcal.transport.roster import Card
from privcal.transport.site import settings as site
from privcal.transport.site import setup
from privcal.trusted.source import Source
from tests.support.parties import ANN, MODEL, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.npz", 30)


def only(made: site.Site) -> site.Population:
    [one] = made.populations
    return one


def source_of(made: site.Site, model: str | None = None) -> Source:
    return made.population(model).source(made.name)


# --- setting up ---------------------------------------------------------------------------


def test_a_site_is_set_up_once(folder: Path, rows: Path) -> None:
    rules = privcal.Policy(2.0, 0.5, None, 1, (ANN,), MODEL)
    made = setup.init(folder, rows, rules, delay=1, max_rows=40)
    assert made == site.Site.load(folder)
    one = only(made)
    assert one.source("site").policy == rules
    assert (made.name, made.delay, one.max_rows, one.model) == ("site", 1.0, 40, MODEL)
    assert (folder / site.SETTINGS).stat().st_mode & 0o077 == 0
    ledger = Ledger(one.ledger)
    assert (ledger.unit, ledger.facts.name) == ("row", "site")
    with pytest.raises(InputError, match="exists already"):
        setup.init(folder, rows, rules)
    (folder / site.SETTINGS).unlink()
    with pytest.raises(InputError, match=r"privcal.ledger exists already"):
        setup.init(folder, rows, rules)


def test_a_site_makes_its_keys_when_it_is_set_up_and_only_its_account_reads_them(
    folder: Path, rows: Path
) -> None:
    with pytest.raises(InputError, match="cannot read the keys"):
        Keys.load(folder)
    setup.init(folder, rows, privcal.Policy())
    made = Keys.load(folder)
    place = folder / "keys"
    for path in (place, *place.iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    assert (made.name, made.role, Keys.load(folder).public) == ("site", "site", made.public)
    assert Card.load(folder / CARD) == made.card
    assert made.ledgers, "they go with the ledger from the beginning"


def test_a_sites_folder_is_flat(folder: Path, rows: Path) -> None:
    setup.init(folder, rows, privcal.Policy())
    assert {path.name for path in folder.iterdir()} == {
        "card.json", "keys", "privcal.ledger", "privcal.toml",
    }  # fmt: skip


def test_a_sites_name_is_its_folders_unless_its_owner_says_another(
    tmp_path: Path, rows: Path
) -> None:
    other = write_rows(tmp_path / "other.npz", 20, seed=1)
    for made, name in (
        (setup.init(tmp_path / "ward-7", rows, privcal.Policy()), "ward-7"),
        (setup.init(tmp_path / "b", other, privcal.Policy(), name="hospital-b"), "hospital-b"),
    ):
        assert made.name == Keys.load(made.folder).name == name
        assert Card.load(made.folder / CARD).name == name
        assert Ledger(only(made).ledger).facts.name == name
    third = write_rows(tmp_path / "third.npz", 20, seed=2)
    with pytest.raises(InputError, match="the folder's name, must be of letters"):
        setup.init(tmp_path / "ward 8", third, privcal.Policy())
    assert not (tmp_path / "ward 8").exists()
    setup.init(tmp_path / "ward 8", third, privcal.Policy(), name="ward-8")


def test_keys_of_another_name_or_role_are_not_used(folder: Path, rows: Path) -> None:
    Keys.make(folder, "site-9", "site")
    with pytest.raises(InputError, match="has the keys of the site site-9; use another folder"):
        setup.init(folder, rows, privcal.Policy(), name="site-1")
    keys.destroy(folder)
    Keys.make(folder, ANN, "calibrator")
    with pytest.raises(InputError, match=r"has the keys of the calibrator ann@lab\.org"):
        setup.init(folder, rows, privcal.Policy())
    assert [path.name for path in folder.iterdir()] == ["keys"]


def test_a_site_that_has_keys_already_keeps_them(folder: Path, rows: Path) -> None:
    """Its owner sent the card to the calibrator first, and the roster has it."""
    before = Keys.make(folder, "site", "site")
    setup.init(folder, rows, privcal.Policy())
    assert Keys.load(folder).public == before.public


def test_a_site_with_damaged_keys_is_told_before_it_has_a_ledger(folder: Path, rows: Path) -> None:
    Keys.make(folder, "site", "site")
    (folder / "keys" / "privcal.key").write_text("{")
    with pytest.raises(InputError, match="is damaged; remove it and make new keys"):
        setup.init(folder, rows, privcal.Policy())
    assert [path.name for path in folder.iterdir()] == ["keys"]
    keys.destroy(folder)
    setup.init(folder, rows, privcal.Policy())


def test_a_second_site_over_the_same_data_gets_no_second_budget(
    folder: Path, rows: Path, tmp_path: Path
) -> None:
    """Nor does it take the first one's ledger; its owner can move that, with all that it spent."""
    first, other = setup.init(folder, rows, privcal.Policy(2.0)), tmp_path / "other"
    source_of(first).answer(Question.of(Gap(), 1.5, "c"))
    with pytest.raises(InputError, match="has the ledger"):
        setup.init(other, rows, privcal.Policy(2.0))
    with pytest.raises(InputError, match="in the folder of another site") as error:
        setup.init(other, rows)
    assert not other.exists()
    [moved] = re.findall("move the ledger to (.*) first", str(error.value))
    only(first).ledger.replace(moved)
    second = setup.init(other, rows)
    assert only(second).ledger == Path(moved)
    with pytest.raises(Refused, match="over_budget"):
        source_of(second).answer(Question.of(Gap(), 1.0, "d"))
    with pytest.raises(Refused, match="ledger_missing"):
        source_of(site.Site.load(folder))


def test_a_site_counts_no_more_rows_than_it_declares_also_when_its_file_grows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privcal.trusted.source.add_noise", lambda total, *_: total.tolist())
    rows = write_rows(tmp_path / "rows.npz", 60)
    made = setup.init(folder, rows, privcal.Policy(2.0), max_rows=60)
    write_rows(rows, 300)
    counts = source_of(made).answer(Question.of(CellHistogram(), 1.0, "c")).values
    assert counts.max() == 60  # of 300 rows far more than that are surely right


def test_another_file_is_not_answered_from_before_its_owner_says_whose_rows_it_has(
    folder: Path, rows: Path, tmp_path: Path
) -> None:
    setup.init(folder, rows, privcal.Policy())
    other = write_rows(tmp_path / "other.npz", 20, seed=1)
    path = folder / site.SETTINGS
    path.write_text(path.read_text().replace(str(rows), str(other)))
    with pytest.raises(InputError, match=r"is not noted for .* privcal ledger attach"):
        source_of(site.Site.load(folder))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": "nowhere.npz"}, "nowhere.npz"),
        ({"max_rows": 29}, "more rows than the 29 declared"),
        ({"max_rows": 0}, "max_rows must be"),
        ({"max_rows": 1.5}, "max_rows must be"),
        ({"max_rows": 2**31}, "max_rows must be"),
        ({"delay": 0.01}, "delay (seconds) must be a number from"),
        ({"delay": 601}, "delay (seconds) must be a number from"),
        ({"delay": "2"}, "delay (seconds) must be a number"),
        ({"delay": True}, "delay (seconds) must be a number"),
        ({"delay": float("nan")}, "delay (seconds) must be a number from"),
        ({"policy": None}, "has no ledger yet"),
        ({"policy": privcal.Policy(rows_per_person=2)}, "there are no person ids"),
        ({"policy": privcal.Policy(budget="person")}, "needs person ids"),
        ({"person": "patient"}, "has no array patient"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    folder: Path, rows: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as error:
        setup.init(folder, **{"data": rows, "policy": privcal.Policy(), **change})
    assert says in str(error.value)
    assert list(folder.iterdir()) == []


def test_an_old_kit_and_data_that_cannot_be_read_get_one_sentence(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    with pytest.raises(
        InputError, match="is a start-up kit of an older privcal: make a new folder"
    ):
        setup.init(tmp_path / "kit", tmp_path / "rows.npz", privcal.Policy())
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    for place in (folder, tmp_path / "new"):
        with pytest.raises(InputError, match=r"broken\.npz"):
            setup.init(place, tmp_path / "broken.npz", privcal.Policy())
    assert list(folder.iterdir()) == []
    assert not (tmp_path / "new").exists()


# --- several models at one site -----------------------------------------------------------


def test_another_models_data_have_a_ledger_and_a_policy_of_their_own(
    folder: Path, rows: Path, tmp_path: Path
) -> None:
    setup.init(folder, rows, privcal.Policy(1.0, model="one"))
    other = write_rows(tmp_path / "other.npz", 20, seed=1)
    made = setup.add(folder, other, privcal.Policy(2.0), model="two", max_rows=50)
    assert made == site.Site.load(folder)
    one, two = made.populations
    assert (one.model, two.model, two.max_rows) == ("one", "two", 50)
    assert one.ledger.resolve() != two.ledger.resolve()
    source_of(made, "two").answer(Question.of(Gap(), 1.5, "c", model="two"))
    assert (Ledger(one.ledger).nano_spent, Ledger(two.ledger).nano_spent) == (0, 1_500_000_000)
    for unknown in ("three", None):
        with pytest.raises(Refused, match="model"):
            made.population(unknown)
    assert (folder / site.SETTINGS).stat().st_mode & 0o077 == 0


def test_the_same_people_keep_their_budget_when_a_second_model_is_added(
    folder: Path, rows: Path, tmp_path: Path
) -> None:
    """Their rows scored by another model are attached to the ledger that they have."""
    made = setup.init(folder, rows, privcal.Policy(1.0), model="one")
    again = write_rows(tmp_path / "again.npz", 30, seed=0)
    data = Data.at(again)
    opening.attach(Ledger(only(made).ledger), data, data.read())
    both = setup.add(folder, again, model="two")
    source_of(both, "one").answer(Question.of(Gap(), 0.75, "c", model="one"))
    with pytest.raises(Refused, match="over_budget"):
        source_of(both, "two").answer(Question.of(Gap(), 0.5, "d", model="two"))
    assert sorted(p.name for p in folder.glob("*.ledger")) == [site.LEDGER]


def test_data_for_any_model_stay_the_only_ones_until_they_are_named(
    folder: Path, rows: Path, tmp_path: Path
) -> None:
    made = setup.init(folder, rows, privcal.Policy())
    assert made.population("whichever") == made.population(None) == only(made)
    other = write_rows(tmp_path / "other.npz", 20, seed=1)
    with pytest.raises(InputError, match="say there which model they are of"):
        setup.add(folder, other, privcal.Policy(), model="two")
    assert len(site.Site.load(folder).populations) == 1


def test_data_of_one_model_are_for_no_other(folder: Path, rows: Path, tmp_path: Path) -> None:
    made = setup.init(folder, rows, privcal.Policy(), model="one")
    assert made.population(None) == only(made), "a question that names no model: its policy decides"
    with pytest.raises(Refused, match="model"):
        made.population("two")
    other = write_rows(tmp_path / "other.npz", 20, seed=1)
    for model, data, policy, says in (
        ("one", other, privcal.Policy(), "data for model 'one' already"),
        ("two", other, None, "has no ledger yet"),
        ("two", rows, privcal.Policy(), "rules of its own"),
        ("two", tmp_path / "nowhere.npz", privcal.Policy(), "nowhere"),
    ):
        with pytest.raises(InputError, match=says):
            setup.add(folder, data, policy, model=model)
        assert site.Site.load(folder) == made
    with pytest.raises(InputError, match="run privcal site init first"):
        setup.add(tmp_path, other, privcal.Policy(), model="two")


# --- the settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("delay = ", "dealy = ", "no setting 'dealy'"),
        ("delay = ", "policy = 3\ndelay = ", "no setting 'policy'.*privcal ledger policy"),
        ("data = ", "data = 5 #", "data must be a path"),
        ("ledger = ", "# ledger = ", "ledger must be a path"),
        ("ledger = ", "leger = ", r"\[\[populations\]\] has no setting 'leger'"),
        ("data = ", "model = 3\ndata = ", "model must be a name"),
        ("data = ", 'model = ""\ndata = ', "model must be a name"),
        ("data = ", "max_rows = -1\ndata = ", "max_rows must be"),
        ("delay = ", "delay ", "is not valid TOML"),
        ("delay = 2.0", "delay = 0", "must be a number from 0.1 to 600"),
        ("[[populations]]", "[populations]", r"at least one \[\[populations\]\]"),
        ("[[populations]]", "[[people]]", "no setting 'people'"),
        ("\n[[populations]]", "\n[[populations]]\ndata = 'a'\nledger = 'b'\n[[populations]]", "needs a model of its own"),
    ],
)  # fmt: skip
def test_a_typo_in_the_settings_is_an_error_and_not_a_silence(
    folder: Path, rows: Path, old: str, new: str, says: str
) -> None:
    setup.init(folder, rows, privcal.Policy())
    path = folder / site.SETTINGS
    text = path.read_text()
    assert old in text
    path.write_text(
        re.sub(rf"(?m){'' if old[0] == chr(10) else '^'}{re.escape(old)}", new, text, count=1)
    )
    with pytest.raises(InputError, match=says):
        site.Site.load(folder)


@pytest.mark.parametrize(
    "text", ["", "delay = 2.0", "populations = []", "populations = [1]", "\xff"]
)
def test_settings_without_data_are_no_settings(folder: Path, text: str) -> None:
    (folder / site.SETTINGS).write_text(text, "latin-1")
    with pytest.raises(InputError, match=r"at least one \[\[populations\]\]|is not valid TOML"):
        site.Site.load(folder)


def test_two_populations_of_one_model_are_refused(folder: Path, rows: Path) -> None:
    setup.init(folder, rows, privcal.Policy(), model="one")
    path = folder / site.SETTINGS
    text = path.read_text()
    path.write_text(text + text[text.index("[[populations]]") :])
    with pytest.raises(InputError, match="needs a model of its own"):
        site.Site.load(folder)


def test_settings_that_are_gone_are_missed(folder: Path) -> None:
    with pytest.raises(InputError, match="run privcal site init first"):
        site.Site.load(folder)


# --- commands -----------------------------------------------------------------------------


def test_site_commands(run: Any, folder: Path, rows: Path) -> None:
    setup = ("site", "init", folder, "--data", rows, "--epsilon", 2, "--model", MODEL)
    code, _, err = run(*setup)
    assert (code, "--per-row" in err) == (2, True)
    setup = (*setup, "--per-row")
    code, out, _ = run(*setup, "--json")
    assert code == 0
    assert json.loads(out)["ledger"].endswith(site.LEDGER)
    code, _, err = run(*setup)
    assert code == 2
    assert "exists already" in err
    told = json.loads(out)
    assert (told["name"], told["card"]) == ("site", str(folder / CARD))
    assert Card.load(told["card"]).name == "site"
    assert run("site", "init", folder)[0] == 2


def test_site_init_makes_the_folder_and_says_what_comes_next(
    run: Any, tmp_path: Path, rows: Path
) -> None:
    setup = ("site", "init", tmp_path / "new", "--data", rows, "--epsilon", 2, "--per-row")
    out, _ = run.ok(*setup, "--name", "hospital-1")
    assert f"send {tmp_path / 'new' / CARD} to the coordinator; privcal roster accept" in out
    assert site.Site.load(tmp_path / "new").name == "hospital-1"
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    assert "older privcal" in run.fails("site", "init", tmp_path / "kit", *setup[3:])


def test_site_add_tells_the_new_ledger(run: Any, folder: Path, rows: Path, tmp_path: Path) -> None:
    setup.init(folder, rows, privcal.Policy(1.0), model="one")
    other = write_rows(tmp_path / "other.npz", 20, seed=1)
    adding = ("site", "add", folder, "--data", other, "--model", "two")
    assert "has no ledger yet" in run.fails(*adding)
    out, _ = run.ok(*adding, "--epsilon", 3, "--per-row", "--json")
    assert json.loads(out) == {"model": "two", "ledger": str(folder / "privcal-2.ledger")}
    assert "data for model 'two' already" in run.fails(*adding, "--epsilon", 3, "--per-row")
