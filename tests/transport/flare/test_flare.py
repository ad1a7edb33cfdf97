"""Letters through a real FLARE: a server and three clients as processes, with mutual TLS.

Each test's letters are its own. What stands behind the clients' sockets plays a site.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privcal.transport import wire
from privcal.transport.calibrator.secure import SecureSites
from privcal.transport.flare import FlareBox
from privcal.transport.letter import Letter
from privcal.transport.site.service import Service
from tests.support import asking
from tests.support import secure_sums as sums
from tests.support.letters import Federation, federation, question, rules
from tests.support.playing import ANN, FEDERATION, Playing, letter

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[flare]")

from tests.support import flare as support
from tests.support.flare import SERVER, Flare

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flare")]
IDS = {f"hospital-{n}": f"{n}{n}" * 16 for n in (1, 2, 3)}


@pytest.fixture(scope="module")
def flare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flare]:
    with support.running(tmp_path_factory.mktemp("flare"), tuple(IDS)) as made:
        yield made


@pytest.fixture
def sites(flare: Flare) -> Iterator[dict[str, Playing]]:
    made = {name: Playing(flare.socket(name), id) for name, id in IDS.items()}
    yield made
    for site in made.values():
        site.close()


@pytest.fixture
def box(flare: Flare) -> Iterator[FlareBox]:
    made = FlareBox(f"flare:{flare.admin}", FEDERATION)
    yield made
    made.close()


def ask(box: FlareBox, text: str, *names: str) -> dict[str, Letter]:
    letters = {name: letter(ANN, IDS[name], text) for name in names or IDS}
    for one in letters.values():
        box.put(ANN, one.name, one.content)
    return letters


def look(box: FlareBox, name: str, said: list[str] | None = None) -> list[bytes]:
    try:
        return [box.get(IDS[name], found) or b"" for found in box.list(IDS[name])]
    except OSError as sentence:  # which a calibrator is warned of
        if said is not None:
            said.append(str(sentence))
        return []


def answers(box: FlareBox, asked: dict[str, Letter], timeout: float = 100.0) -> list[str]:
    """Wait for the answers to letters; what the calibrator was warned of meanwhile."""
    end, found = time.monotonic() + timeout, set[str]()
    said: list[str] = []
    while len(found) < len(asked):
        assert time.monotonic() < end, f"{sorted(found)} of {sorted(asked)}; clients said {box.met}"
        for name, one in asked.items():
            expected = letter(IDS[name], ANN, f"to {one.digest}").content
            found |= {name} if expected in look(box, name, said) else set()
        time.sleep(0.1)
    return said


def test_two_rounds_of_letters_and_a_site_is_given_its_own_alone(
    box: FlareBox, sites: dict[str, Playing]
) -> None:
    box.put("", "roster-2", b"a roster that only removes")
    for text in ("one", "two"):
        asked, began = ask(box, text), time.monotonic()
        answers(box, asked)
        print(f"\na round with FLARE: {time.monotonic() - began:.1f} s")
    for name, site in sites.items():
        own = [letter(ANN, IDS[name], text).content for text in ("one", "two")]
        replies = [site.reply(content) for content in own]
        assert {*own, b"a roster that only removes", replies[0]} == set(site.taken)
        # Its own last letter, by which it sees that its ledger was put back: with the second trip.
        assert site.taken.count(replies[0]) == 1


def test_a_dead_client_costs_its_own_answer_alone(
    flare: Flare, box: FlareBox, sites: dict[str, Playing]
) -> None:
    flare.kill("hospital-3")
    try:
        asked = ask(box, "dead")
        answers(box, {name: asked[name] for name in ("hospital-1", "hospital-2")})
        assert not look(box, "hospital-3")
    finally:
        flare.up("hospital-3")
        flare.connected()
    answers(box, asked)


def test_a_client_that_dies_with_the_letter_in_its_hands_costs_its_own_answer_alone(
    flare: Flare, box: FlareBox, sites: dict[str, Playing]
) -> None:
    def die(content: bytes) -> bytes | None:
        sites["hospital-3"].answers = sites["hospital-3"].reply
        flare.kill("hospital-3")
        return None

    sites["hospital-3"].answers = die
    asked, began = ask(box, "dies"), time.monotonic()
    try:
        answers(box, {name: asked[name] for name in ("hospital-1", "hospital-2")}, timeout=200)
        print(f"\na trip in which a client died: {time.monotonic() - began:.1f} s")
    finally:
        flare.up("hospital-3")
        flare.connected()
    answers(box, asked)


def test_a_restarted_server_costs_time_alone(
    flare: Flare, box: FlareBox, sites: dict[str, Playing]
) -> None:
    asked = ask(box, "restarted")
    look(box, "hospital-1")  # a trip is under way
    time.sleep(4)
    flare.kill(SERVER)
    time.sleep(1)
    flare.up(SERVER)
    said = answers(box, asked, timeout=200)
    assert said
    assert all(sentence.startswith("FLARE: ") for sentence in said)


def test_without_the_line_at_a_client_it_is_silent_and_the_others_answer(
    flare: Flare, box: FlareBox, sites: dict[str, Playing]
) -> None:
    flare.allow("hospital-2", allowed=False)
    try:
        asked = ask(box, "not allowed")
        said = answers(box, {name: asked[name] for name in ("hospital-1", "hospital-3")})
        end = time.monotonic() + 60
        while not said and time.monotonic() < end:  # answers may come before the trip is over
            look(box, "hospital-1", said)
            time.sleep(0.1)
    finally:
        flare.allow("hospital-2")
    [sentence] = said
    assert re.search("no word from the sites of hospital-2: .* in class_allow_list of", sentence)
    assert box.met == {**IDS, "hospital-2": "silent"}
    assert not sites["hospital-2"].taken
    answers(box, asked)  # the line counts at once


def test_without_the_line_at_the_server_a_sentence_says_so(
    flare: Flare, box: FlareBox, sites: dict[str, Playing]
) -> None:
    flare.allow(SERVER, allowed=False)
    try:
        ask(box, "no server")
        said, end = list[str](), time.monotonic() + 150
        while not said and time.monotonic() < end:
            look(box, "hospital-1", said)
            time.sleep(0.1)
        assert re.search("did not run the job .* in class_allow_list of", said[0])
    finally:
        flare.allow(SERVER)
    assert not any(site.taken for site in sites.values())


@pytest.mark.parametrize(
    "raw",
    [
        (b"\xff\xff\xff\xff", b"\0\0\0\x05[1,2]"),  # 4 GiB, and a list
        (b"\0\0\0\x02{}", b"\0\1"),  # no ID, and half a length
        (b"", b"\0\x1f\xff\xff" + bytes(9)),  # nothing, and half a frame
    ],
    ids=["too long", "too short", "cut off"],
)
def test_garbage_from_a_clients_socket_costs_its_own_answer_alone(
    raw: tuple[bytes, bytes], box: FlareBox, sites: dict[str, Playing]
) -> None:
    sites["hospital-2"].raw, sites["hospital-3"].raw = raw
    asked = ask(box, f"garbage {raw!r}"[:40])
    answers(box, {"hospital-1": asked["hospital-1"]})
    assert not look(box, "hospital-2")
    assert not look(box, "hospital-3")


def test_a_site_that_answers_with_no_letter_or_never_costs_its_own_answer_alone(
    box: FlareBox, sites: dict[str, Playing]
) -> None:
    sites["hospital-2"].answers = lambda content: bytes(2 << 20)
    sites["hospital-3"].answers = lambda content: time.sleep(60)
    asked, began = ask(box, "no letter"), time.monotonic()
    answers(box, {"hospital-1": asked["hospital-1"]})
    print(f"\na trip to a site that never answers: {time.monotonic() - began:.1f} s")
    assert not look(box, "hospital-2")
    assert not look(box, "hospital-3")
    sites["hospital-3"].answers = sites[
        "hospital-3"
    ].reply  # its late answer comes with the next trip
    answers(box, {"hospital-3": asked["hospital-3"]})


@pytest.fixture
def made(flare: Flare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    """Three sites of privcal's, each behind its client's socket, which no folder joins."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))
    wanted = sums.policy(rules())
    made = federation(tmp_path / "world", 3, policy=wanted, start=False, monkeypatch=monkeypatch)
    stopped = threading.Event()
    services = [Service(made.at(name)) for name in made.sites]
    served = zip(flare.clients, services, strict=True)
    threads = [
        threading.Thread(target=wire.serve, args=(flare.socket(client), service, stopped))
        for client, service in served
    ]
    for thread in threads:
        thread.start()
    yield made
    stopped.set()
    for thread in threads:
        thread.join(10)
    for service in services:
        service.close()


def test_a_question_and_a_secure_sum_of_real_sites(flare: Flare, made: Federation) -> None:
    box = FlareBox(str(flare.admin), made.roster.federation)
    settings: dict[str, Any] = {"box": box, "wait": 100.0, "every": 0.5}
    try:
        began = time.monotonic()
        asked = asking.exchange(made, **settings)
        one = question("plain")
        replies = dict(asked.ask("ask", "plain", made.sites, plan=(one,), questions=(one,)))
        assert [len(replies[name].answers) for name in made.sites] == [1, 1, 1]
        print(f"\na question over FLARE: {time.monotonic() - began:.1f} s")

        began = time.monotonic()
        way = SecureSites(asking.sites(made, **settings))
        terms = sums.agreed(way, made.sites, "secure")
        assert way.offer(terms, [terms.question]) == {}
        total = sums.summed(way, terms)
        print(f"a secure sum over FLARE: {time.monotonic() - began:.1f} s")
        assert total == pytest.approx(sums.exact(made, made.sites, terms.question), abs=0.01)
        nano = one.nano_epsilon + terms.question.nano_epsilon
        assert {made.ledger(name).nano_spent for name in made.sites} == {nano}
    finally:
        box.close()
