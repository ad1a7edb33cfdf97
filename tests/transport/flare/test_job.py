"""What is in a job, and who is given what of it: no FLARE runs here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from privcal.transport.flare import FlareBox
from privcal.transport.flare.job import BOX, collect, letters_for, pack, write_job
from privcal.transport.mailbox import FolderBox
from privcal.trusted.errors import InputError
from tests.conftest import Run
from tests.support.playing import ANN, FEDERATION, letter

SITE, OTHER = "11" * 16, "22" * 16


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def files(*letters: tuple[str, str]) -> dict[str, bytes]:
    made = [letter(sender, reader) for sender, reader in letters]
    return {f"{one.sender}/{one.name}": one.content for one in made}


def put(folder: Path, contents: dict[str, bytes]) -> None:
    box = FolderBox(folder, FEDERATION)
    for path, content in contents.items():
        box.put(*path.split("/"), content)


def test_a_job_has_letters_in_the_servers_app_alone_and_no_code(
    tmp_path: Path, spool: Path
) -> None:
    letters = files((ANN, SITE))
    put(spool, letters)
    pack(tmp_path / "job", spool, FEDERATION, letters)
    write_job(tmp_path / "job", ["hospital-1"])
    names = {path.relative_to(tmp_path / "job").as_posix() for path in tmp_path.rglob("job/**/*")}
    assert {name for name in names if (tmp_path / "job" / name).is_file()} == {
        "meta.json",
        "letters/config/config_fed_server.json",
        "carrier/config/config_fed_client.json",
        *(f"letters/{BOX}/{FEDERATION}/{name}" for name in letters),
    }
    deployed = json.loads((tmp_path / "job" / "meta.json").read_text())["deploy_map"]
    assert deployed == {"letters": ["server"], "carrier": ["hospital-1"]}
    assert "socket" not in (tmp_path / "job/carrier/config/config_fed_client.json").read_text()


def test_a_site_is_given_its_letters_its_own_ones_and_rosters_and_nothing_else(
    tmp_path: Path, spool: Path
) -> None:
    own, others = files((ANN, SITE), (SITE, ANN)), files((ANN, OTHER), (OTHER, ANN))
    put(spool, own | others)
    FolderBox(spool, FEDERATION).put("", "roster-2", b"roster")
    FolderBox(spool, FEDERATION).put("", "another", b"file")
    folder = spool / FEDERATION / ANN
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.symlink(secret, folder / f"{SITE}-{'0' * 64}")
    os.mkfifo(folder / f"{SITE}-{'1' * 64}")
    given = letters_for(spool, FEDERATION, SITE)
    assert given == {name.split("/")[1]: content for name, content in own.items()} | {
        "roster-2": b"roster"
    }
    assert not letters_for(spool, "00" * 16, SITE)


def test_of_a_jobs_result_only_answers_to_what_was_sent_are_taken(
    tmp_path: Path, spool: Path
) -> None:
    sent, result = tmp_path / "sent", tmp_path / "result"
    sent.mkdir()
    result.mkdir()
    put(sent, files((ANN, SITE)))
    [(path, content)] = files((SITE, ANN)).items()
    put(result, {path: content} | files((OTHER, ANN), (SITE, OTHER)))
    put(result, {f"{SITE}/{ANN}-{'0' * 64}": b"not what its name says", f"{SITE}/strange": b""})
    os.symlink(tmp_path, result / FEDERATION / SITE / f"{ANN}-{'1' * 64}")
    assert collect(sent, result, spool) == 1
    assert [file.relative_to(spool / FEDERATION).as_posix() for file in spool.rglob("*-*")] == [
        path
    ]
    assert collect(sent, result, spool) == 0, "nothing new"


@pytest.mark.parametrize("text", ["{}", '{"admin": 1}', "no JSON", None])
def test_what_is_no_admins_kit_is_refused_in_a_sentence(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "startup").mkdir()
    if text is not None:
        (tmp_path / "startup" / "fed_admin.json").write_text(text)
    with pytest.raises(InputError, match="start-up kit"):
        FlareBox(f"flare:{tmp_path}", FEDERATION)


def test_an_operator_carries_the_letters_of_a_folder_by_hand(
    tmp_path: Path, spool: Path, run: Run
) -> None:
    asked, answered = files((ANN, SITE)), files((SITE, ANN))
    put(spool, asked)
    (spool / FEDERATION / ANN / f"{SITE}-{'0' * 64}").symlink_to("/etc/passwd")
    job, result = tmp_path / "trip", tmp_path / "result"
    made = ["post", spool, "--job", job, "--client", "site-1"]
    assert run(*made)[0] == 0
    packed = {p.relative_to(job / "letters" / BOX / FEDERATION) for p in job.rglob(f"{SITE}-*")}
    assert packed == {Path(name) for name in asked}, "and nothing through a link"
    assert run(*made)[0] == 2, "a job is not made twice"
    assert run("post", spool, "--job", tmp_path / "other")[0] == 2, "for no client"
    brought = result / "workspace" / BOX
    brought.mkdir(parents=True)
    put(brought, answered)
    assert "replies put: 1" in run("post", spool, "--job", job, "--result", result)[1]
    assert all((spool / FEDERATION / name).is_file() for name in answered)
    assert run("post", spool, "--job", job, "--result", tmp_path)[0] == 2
