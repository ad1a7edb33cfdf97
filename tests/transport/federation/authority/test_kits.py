"""A provisioned kit is closed; whatever is opened in it is found, and said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.trusted.errors import InputError
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation import inspection
from privcal.transport.federation.authority.kits import close_kit, init, load, revoke
from privcal.transport.federation.authority.project import Project
from privcal.transport.federation.inspection import Finding, check, closed
from privcal.transport.federation.shared.kit import contents
from privcal.transport.federation.site import keys, setup
from privcal.transport.federation.site import settings as site
from tests.support import federation_parts as parts

PROJECT = """
name = "trial"
[server]
host = "localhost"
port = 18002
[[sites]]
name = "hospital-1"
org = "one"
[[sites]]
name = "hospital-2"
org = "two"
[[calibrators]]
name = "ann@lab.org"
org = "lab"
"""


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    (folder / "project.toml").write_text(PROJECT)
    init(folder / "project.toml", folder / "kits")
    return folder / "kits"


@pytest.fixture
def kit(kits: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy to open."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(kits / name, tmp_path / name))

    return copy


# --- the project file --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "trial"', "", "name of the file is missing"),
        ('name = "trial"', 'name = "../x"', "name of the file must be letters"),
        ('name = "trial"', 'name = "trial"\nextra = 1', "unknown key 'extra'"),
        ("port = 18002", "port = 80", "port of [server] must be"),
        ("port = 18002", 'port = "18002"', "port of [server] must be"),
        ('host = "localhost"', 'host = "a b"', "host of [server] must be"),
        ('host = "localhost"', "", "host of [server] is missing"),
        ('name = "hospital-2"', 'name = "hospital-1"', "hospital-1 is there twice"),
        ('name = "hospital-2"', 'name = "Hospital-1"', "Hospital-1 is there twice"),
        ('name = "hospital-2"', 'name = "ca"', "nobody can be called ca"),
        ('name = "hospital-2"', 'name = "a/b"', "name of [[sites]] number 2 must be"),
        ('org = "two"', "", "org of [[sites]] number 2 is missing"),
        ('name = "ann@lab.org"', 'name = "ann"', "must be an e-mail address"),
        ("[[calibrators]]", "[[askers]]", "unknown key 'askers'"),
        ("[server]", "[server", "is not valid TOML"),
    ],
)
def test_a_wrong_project_file_is_one_clear_sentence(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    file = tmp_path / "project.toml"
    file.write_text(PROJECT.replace(old, new))
    with pytest.raises(InputError, match=r"^[^\n]+$") as error:
        init(file, tmp_path / "kits")
    assert says in str(error.value)
    assert str(file) in str(error.value)
    assert not (tmp_path / "kits").exists()


def test_a_federation_needs_sites_and_calibrators(tmp_path: Path) -> None:
    file = tmp_path / "project.toml"
    file.write_text(PROJECT.split("[[calibrators]]")[0])
    with pytest.raises(InputError, match=r"at least one \[\[calibrators\]\]"):
        Project.load(file)


def test_kits_are_not_made_over_others(kits: Path) -> None:
    with pytest.raises(InputError, match="is there already"):
        init(kits.parent / "project.toml", kits)


# --- fresh kits --------------------------------------------------------------------------


def test_provisioning_is_quiet_and_leaves_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project.toml").write_text(PROJECT)
    made = init(tmp_path / "project.toml", tmp_path / "kits")
    assert capfd.readouterr() == ("", "")
    names = {"localhost", "hospital-1", "hospital-2", "ann@lab.org"}
    assert {path.name for path in made} == names
    assert {p.name for p in (tmp_path / "kits").iterdir()} == names | {"ca", "federation.json"}
    assert load(tmp_path / "kits") == Project.load(tmp_path / "project.toml")


@pytest.mark.parametrize("name", ["localhost", "hospital-1", "hospital-2", "ann@lab.org"])
def test_a_fresh_kit_is_closed(kits: Path, name: str) -> None:
    findings = check(kits / name)
    assert closed(findings), [finding for finding in findings if not finding.ok]


def test_private_files_are_their_owners_alone(kits: Path) -> None:
    for folder in ("localhost", "hospital-1", "ann@lab.org", "ca"):
        for path in (kits / folder, *(kits / folder).rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path
    assert len(list(kits.glob("*/startup/*.key"))) == 4
    assert "private key" in (kits / "ca" / "README.txt").read_text()


def test_the_authoritys_key_is_in_no_kit(kits: Path) -> None:
    key = json.loads((kits / "ca" / "cert.json").read_text())["root_pri_key"].splitlines()[1]
    holders = [p for p in kits.rglob("*") if p.is_file() and key in p.read_text(errors="ignore")]
    assert holders == [kits / "ca" / "cert.json"]


# --- what is in a kit --------------------------------------------------------------------

KIND = {
    "localhost": "server",
    "hospital-1": "site",
    "hospital-2": "site",
    "ann@lab.org": "calibrator",
}


@pytest.mark.parametrize("name", KIND)
def test_a_kit_holds_who_somebody_is_and_where_the_server_is_and_nothing_to_run(
    kits: Path, name: str
) -> None:
    kit = kits / name
    assert {path.name for path in kit.iterdir()} == {"startup", "local", "README.txt"}
    assert {path.name for path in (kit / "startup").iterdir()} == contents(KIND[name])
    assert list((kit / "local").iterdir()) == []
    for path in kit.rglob("*"):
        assert path.is_dir() or not path.stat().st_mode & 0o111, f"{path} is executable"
        assert not path.is_symlink()
    said = (kit / "README.txt").read_text()
    assert f"privcal federation check {name}" in said
    assert ("privcal site init" in said) == (KIND[name] == "site")


def test_flares_own_kit_is_open_until_it_is_closed(tmp_path: Path, kits: Path) -> None:
    """As FLARE's tool makes it: with programs that take jobs and commands."""
    from privcal.transport.federation.authority.authority import Authority
    from privcal.transport.federation.authority.kits import _run_provisioner

    project = load(kits)
    made = _run_provisioner(project, project.everyone, Authority.load(kits / "ca"), tmp_path)
    for name in KIND:
        [finding] = [f for f in check(made / name) if f.rule == "nothing to run"]
        assert not finding.ok
        assert any(path.suffix == ".sh" for path in (made / name).rglob("*"))
        close_kit(made / name)
        assert closed(check(made / name))


# --- opened kits -------------------------------------------------------------------------

Opening = Callable[[Path], object]


def finding(folder: Path, rule: str) -> Finding:
    [found] = [found for found in check(folder) if found.rule == rule]
    return found


def write(name: str, text: str = "{}") -> Opening:
    def apply(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return apply


def remove(name: str) -> Opening:
    return lambda folder: (folder / name).unlink()


def mode(name: str, bits: int) -> Opening:
    return lambda folder: (folder / name).chmod(bits)


@pytest.mark.parametrize(
    ("opening", "rule", "says"),
    [
        (write("startup/fed_client.json", "{"), "start-up file", "is not JSON"),
        (write("startup/fed_client.json", "[]"), "start-up file", "is damaged"),
        (remove("startup/rootCA.pem"), "start-up file", "rootCA.pem is missing"),
        (remove("startup/client.crt"), "start-up file", "client.crt is missing"),
        (write("startup/start.sh", ""), "nothing to run", "startup/start.sh is no part of this kit"),
        (write("startup/sub_start.sh", ""), "nothing to run", "is no part of this kit"),
        (write("startup/signature.json"), "nothing to run", "is no part of this kit"),
        (write("local/resources.json"), "nothing to run", "local/resources.json is for FLARE's own"),
        (write("local/resources.json.default"), "nothing to run", "resources.json.default is for"),
        (write("local/authorization.json"), "nothing to run", "authorization.json is for"),
        (write("local/custom/evil.py", ""), "nothing to run", "local/custom is for"),
        (write("a-job/app_hospital-1/custom/evil.py", ""), "nothing to run", "came with a job"),
        (mode("startup/client.key", 0o640), "private files", "client.key can be read by others"),
        (mode("startup/client.key", 0o604), "private files", "client.key can be read by others"),
        (mode("startup/rootCA.pem", 0o666), "private files", "rootCA.pem can be changed"),
        (mode("startup", 0o770), "private files", "startup can be changed"),
        (mode("local", 0o777), "private files", "local can be changed"),
        (mode(".", 0o777), "private files", "can be changed by others"),
        (remove("startup/client.key"), "private files", "no private key"),
        (write("state/cert.json"), "authority", "state looks like"),
        (write("ca/cert.json"), "authority", "ca looks like"),
        (write("cert.json"), "authority", "cert.json looks like"),
        (write("startup/client.crt", "x"), "certificate", "is not a certificate"),
        (write("startup/client.key", "x"), "certificate", "client.key cannot be read"),
        (write("startup/rootCA.pem", "x"), "dates", "is not a certificate"),
        (write("local/revoked.json", "{"), "revocations", "revoked.json"),
        (write("local/privcal.toml", "="), "settings", "is not valid TOML"),
        (write("local/privcal.toml", "delay = 2.0"), "settings", "at least one [[populations]]"),
    ],
)  # fmt: skip
def test_what_is_opened_at_a_site_is_found(
    kit: Callable[[str], Path], opening: Opening, rule: str, says: str
) -> None:
    folder = kit("hospital-1")
    opening(folder)
    findings = check(folder)
    [found] = [found for found in findings if found.rule == rule]
    assert not found.ok
    assert says in found.sentence
    assert "\n" not in found.sentence
    assert found.remedy
    assert not closed(findings)


@pytest.mark.parametrize(
    ("name", "opening", "rule", "says"),
    [
        ("localhost", write("startup/fed_server.json", "{}"), "start-up file", "is damaged"),
        ("localhost", write("startup/start.sh", ""), "nothing to run", "no part of this kit"),
        ("localhost", write("startup/client.key", ""), "nothing to run", "no part of this kit"),
        ("localhost", write("local/resources.json"), "nothing to run", "is for FLARE's own"),
        ("localhost", mode("startup/server.key", 0o644), "private files", "server.key can be read"),
        ("localhost", write("local/revoked.json", "{"), "revocations", "revoked.json"),
        ("ann@lab.org", write("startup/fl_admin.sh", ""), "nothing to run", "no part of this kit"),
        ("ann@lab.org", write("startup/fed_admin.json", "{}"), "start-up file", "is damaged"),
        ("ann@lab.org", mode("startup/client.key", 0o644), "private files", "can be read"),
        ("ann@lab.org", write("ca/cert.json"), "authority", "ca looks like"),
    ],
)  # fmt: skip
def test_what_is_opened_at_the_server_or_a_calibrator_is_found(
    kit: Callable[[str], Path], name: str, opening: Opening, rule: str, says: str
) -> None:
    folder = kit(name)
    opening(folder)
    found = finding(folder, rule)
    assert not found.ok
    assert says in found.sentence
    assert found.remedy


def test_another_version_of_flare_is_said_and_none_too(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate was written for the way that one version handles messages."""
    for version, ok in (("2.9.0", True), ("2.9.7", True), ("2.8.0", False), ("2.90.0", False)):
        monkeypatch.setattr(inspection, "version", lambda name, version=version: version)
        found = finding(kits / "hospital-1", "FLARE")
        assert found.ok is ok
        assert ok or f"FLARE {version} is installed" in found.sentence

    def missing(name: str) -> str:
        raise inspection.PackageNotFoundError(name)

    monkeypatch.setattr(inspection, "version", missing)
    assert finding(kits / "hospital-1", "FLARE").sentence == "FLARE is not installed here"


def test_somebody_elses_key_or_certificate_does_not_fit(
    kit: Callable[[str], Path], kits: Path
) -> None:
    folder = kit("hospital-1")
    theirs = kits / "hospital-2" / "startup"
    shutil.copy(theirs / "client.key", folder / "startup" / "client.key")
    assert "is not the key of startup/client.crt" in finding(folder, "certificate").sentence
    foreign, key = parts.certificate("hospital-1")
    write("startup/client.crt", foreign)(folder)
    (folder / "startup" / "client.key").write_bytes(parts.key_pem(key))
    assert "was not made by the authority" in finding(folder, "certificate").sentence


@pytest.mark.parametrize(
    ("days", "ok", "warn", "says"),
    [
        (-1, False, False, "ran out on"),
        (10, True, True, "runs out on"),
        (60, True, False, "30 days"),
    ],
)
def test_a_certificate_that_ran_out_is_open_and_one_that_soon_does_is_said(
    kit: Callable[[str], Path], kits: Path, days: int, ok: bool, warn: bool, says: str
) -> None:
    folder = kit("hospital-1")
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    made, _ = parts.certificate("hospital-1", authority=authority, days=days)
    write("startup/client.crt", made)(folder)
    found = finding(folder, "dates")
    assert (found.ok, found.warn) == (ok, warn)
    assert says in found.sentence
    assert bool(found.remedy) is (not ok or warn)


def test_whoever_is_revoked_is_told(tmp_path: Path) -> None:
    """With the authority of kits of its own: these are revoked for good."""
    (tmp_path / "project.toml").write_text(PROJECT)
    init(tmp_path / "project.toml", tmp_path / "kits")
    from privcal.transport.federation.authority import kits as making
    from privcal.transport.federation.shared import revocations

    folder = tmp_path / "kits" / "hospital-1"
    making.renew(tmp_path / "kits", "hospital-1", tmp_path / "new")
    revocations.install(folder, revoke(tmp_path / "kits", "hospital-1", old_keys=True))
    assert "own certificate is revoked" in finding(folder, "revocations").sentence
    for path in (tmp_path / "new").iterdir():
        shutil.copy(path, folder / "startup" / path.name)
    assert finding(folder, "revocations").ok


# --- a site that was set up --------------------------------------------------------------


@pytest.fixture
def set_up(kit: Callable[[str], Path], tmp_path: Path) -> Path:
    folder = kit("hospital-1")
    data = parts.write_rows(tmp_path / "rows.npz", 20)
    setup.init(folder, data, privcal.Policy(2.0))
    assert closed(check(folder)), [found for found in check(folder) if not found.ok]
    return folder


@pytest.mark.parametrize(
    ("opening", "rule", "says"),
    [
        (keys.destroy, "own keys", "cannot read the site's keys"),
        (mode("local/keys/site.key", 0o644), "own keys", "is open to other accounts"),
        (mode("local/keys", 0o755), "own keys", "is open to other accounts"),
        (write("local/keys/site.key", "{}"), "own keys", "is not of format"),
        (mode("local/privcal.toml", 0o666), "private files", "privcal.toml can be changed"),
        (mode("local/privcal.ledger", 0o660), "private files", "privcal.ledger can be changed"),
        (write("local/privcal.toml", "populations = 1"), "settings", "at least one [[populations]]"),
        (write("local/privcal.ledger", "x" * 4096), "ledgers", "privcal.ledger"),
        (remove("local/privcal.ledger"), "ledgers", "privcal.ledger"),
    ],
)  # fmt: skip
def test_what_is_opened_at_a_site_that_was_set_up_is_found(
    set_up: Path, opening: Opening, rule: str, says: str
) -> None:
    opening(set_up)
    found = finding(set_up, rule)
    assert not found.ok
    assert says in found.sentence
    assert found.remedy


def test_a_ledger_that_was_brought_back_from_a_backup_is_found(set_up: Path) -> None:
    ledger = set_up / "local" / site.LEDGER
    before = ledger.read_bytes()
    site.Site.load(set_up).population(None).source("hospital-1").answer(
        Question.of(Gap(), 1.0, "c")
    )
    assert finding(set_up, "ledgers").ok
    ledger.write_bytes(before)
    found = finding(set_up, "ledgers")
    assert not found.ok
    assert "its source refuses until you run privcal ledger reconcile" in found.sentence
    assert "privcal ledger reconcile" in found.remedy


def test_marks_that_this_account_cannot_see_are_found(
    set_up: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Set up by one account and started by another, a site would refuse every question."""
    marks = Path(str(Ledger(set_up / "local" / site.LEDGER).facts.marks))
    marks.rename(marks.with_name("elsewhere.db"))
    found = finding(set_up, "ledgers")
    assert not found.ok
    assert f"the marks in {marks} do not know this ledger" in found.sentence
    marks.with_name("elsewhere.db").rename(marks)
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "nobodys.db"))
    found = finding(set_up, "ledgers")
    assert not found.ok, "what the ledger says of its marks is not believed"
    assert "the PRIVCAL_MARKS it was set up with" in found.remedy


def test_of_two_ledgers_the_second_is_looked_at_too(set_up: Path, tmp_path: Path) -> None:
    path = set_up / "local" / site.SETTINGS
    path.write_text(path.read_text() + 'model = "one"\n')
    setup.add(set_up, parts.write_rows(tmp_path / "b.npz", 20, seed=1), privcal.Policy(), model="b")
    assert finding(set_up, "ledgers").ok
    (set_up / "local" / "privcal-2.ledger").unlink()
    assert "privcal-2.ledger" in finding(set_up, "ledgers").sentence


def test_every_rule_was_seen_open(kits: Path) -> None:
    """By the tests above: whoever adds a rule adds a case."""
    seen = {
        "start-up file", "nothing to run", "FLARE", "private files", "authority", "certificate",
        "dates", "revocations", "settings", "own keys", "ledgers",
    }  # fmt: skip
    assert {found.rule for name in KIND for found in check(kits / name)} == seen


def test_what_is_no_kit_is_said(kit: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a participant's folder"):
        check(tmp_path)
    folder = kit("hospital-1")
    write("startup/fed_server.json")(folder)
    with pytest.raises(InputError, match="must hold one of"):
        check(folder)


# --- commands ----------------------------------------------------------------------------


def test_commands_tell_what_they_did(run: Any, tmp_path: Path) -> None:
    (tmp_path / "project.toml").write_text(PROJECT)
    making = ("federation", "init", tmp_path / "project.toml", "--out", tmp_path / "k")
    code, out, _ = run(*making, "--json")
    assert code == 0
    told = json.loads(out)
    assert [Path(kit).name for kit in told["kits"]] == list(KIND)
    assert told["ca"] == str(tmp_path / "k" / "ca")
    code, _, err = run(*making)
    assert (code, "is there already" in err) == (2, True)
    folder = tmp_path / "k" / "hospital-1"
    code, out, _ = run("federation", "check", folder, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["closed"], told["kit"]) == (True, str(folder))
    assert {f["ok"] for f in told["findings"]} == {True}
    write("startup/start.sh")(folder)
    code, out, _ = run("federation", "check", folder)
    assert code == 1
    assert "startup/start.sh is no part of this kit" in out
    assert "what to do: remove it" in out
    assert "is open: 1 of" in out
    code, out, _ = run("federation", "check", folder, "--json")
    told = json.loads(out)
    assert (code, told["closed"]) == (1, False)
    [wrong] = [f for f in told["findings"] if not f["ok"]]
    assert (wrong["rule"], wrong["remedy"], wrong["warn"]) == (
        "nothing to run",
        "remove it; if the kit is of an earlier version, ask for a fresh one",
        False,
    )
    code, _, err = run("federation", "check", tmp_path)
    assert (code, "is not a participant's folder" in err) == (2, True)
    code, out, _ = run("federation", "down", tmp_path / "k")
    assert (code, out) == (0, "nothing was running\n")
    assert run("federation", "up")[0] == 2


def test_down_stops_what_runs_though_the_list_of_participants_and_their_folders_are_gone(
    run: Any, tmp_path: Path
) -> None:
    """By the table of processes: one that belongs there, one of another federation, a stranger."""
    code = "import time; print(flush=True); time.sleep(600)"
    module, kits = "privcal.transport.federation.site.service", tmp_path / "kits"
    kits.mkdir()
    words = [(module, kits / "gone"), (module, tmp_path / "others" / "gone"), ("x", kits / "gone")]
    started = [
        subprocess.Popen([sys.executable, "-c", code, *map(str, more)], stdout=subprocess.PIPE)
        for more in words
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        (kits / "federation.json").write_text("{")
        status, out, err = run("federation", "down", kits)
        assert (status, out) == (0, "1 process stopped\n")
        assert "federation.json is missing or damaged" in err
        assert started[0].wait(30) == -signal.SIGTERM
        assert [process.poll() for process in started[1:]] == [None, None]
        status, _, err = run("federation", "down", kits)
        assert (status, "federation.json is missing or damaged" in err) == (2, True)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_what_runs_out_soon_is_shown_and_does_not_fail_the_check(
    run: Any, kit: Callable[[str], Path], kits: Path
) -> None:
    folder = kit("hospital-1")
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    made, key = parts.certificate("hospital-1", authority=authority, days=5)
    write("startup/client.crt", made)(folder)
    (folder / "startup" / "client.key").write_bytes(parts.key_pem(key))
    code, out, _ = run("federation", "check", folder)
    assert code == 0
    assert "SOON" in out
    assert "is closed" in out


def test_a_server_is_served_from_its_kit_with_an_environment_of_its_own(
    run: Any, kit: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.chdir(tmp_path)  # it goes elsewhere
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "x")
    monkeypatch.setattr("os.execve", lambda *given: became.append(given))
    mask = os.umask(0o022)
    try:
        code, _, err = run("federation", "serve", kit("hospital-1"))
        assert (code, "is not a server's start-up kit" in err) == (2, True)
        assert became == []
        folder = kit("localhost")
        assert run("federation", "serve", folder)[0] == 0
    finally:
        os.umask(mask)
    [(_, command, environment)] = became
    assert command[-2:] == ["privcal.transport.federation.server", str(folder)]
    assert "-P" in command, "nothing is imported from the folder it is started in"
    assert "SECRET_OF_THE_CALLER" not in environment
    assert environment["HOME"].startswith(str(folder))


def test_a_roster_is_gathered_by_calibrators_only(run: Any, kits: Path) -> None:
    code, _, err = run("federation", "roster", kits / "hospital-1")
    assert code == 2
    assert err.count("\n") == 1
    assert "is not a calibrator's start-up kit" in err


def test_without_flare_one_sentence_says_what_to_install(
    run: Any, kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privcal.transport.federation.find_spec", lambda name: None)
    for arguments in (
        ("federation", "init", "p.toml", "--out", "k"),
        ("federation", "check", kits / "hospital-1"),
        ("federation", "roster", kits / "ann@lab.org"),
        ("federation", "serve", kits / "localhost"),
        ("federation", "up", "k"),
        ("federation", "down", "k"),
        ("site", "run", kits / "hospital-1"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.count("\n") == 1
        assert "privcal[federation]" in err
