"""A site's side of secure sums: what it agrees to, what it deals, what it opens, and why that is safe.

The promise, to the owner of one site:

> Against a calibrator, the carrier and at most `colluding` hospitals working together, chosen
> beforehand, everything that leaves your hospital in secure sums is ε-differentially private for the
> ε your ledger shows. This rests on the secrecy of the sealed shares (HPKE, Ed25519), on each hospital
> keeping its record of openings, and on every honest hospital in the sum using the noise that the
> signed question prescribes. A hospital whose keys are lost, now or later, or whose ledger is rolled
> back unnoticed counts as colluding; so do all hospitals run by one party that does.
>
> If more collude, or the encryption is broken, at most `alone`·ε is lost; that needs no assumption
> but your own machine and its randomness. A person at k hospitals is exposed to k times either.
>
> One dishonest hospital can spoil a question without being identified; its ε is spent all the same.

*Why at most `alone`·ε whatever else fails.* All that leaves in SHARE is made of v = x + s + f: the
exact sums x, a share s of the common noise, and discrete Laplace noise f of this site's own at
`alone`·ε and the sensitivity of the terms, which is at least that of x (`Source.agree` refuses
otherwise). x + f is `alone`·ε-private by itself; s, the polynomials, sealing and signatures are drawn
without looking at the rows. An opening of this site shows sums of others' numbers and of shares of
v. So whoever has all that ever left, and every key, has a function of x + f and of things that do not
depend on the rows. The charge and the stored text make it one v for each
question, and charges add up. ∎

*Why ε against a coalition of at most t.* Let the others, M ≥ n − t, be honest: they draw as the terms
say, open one set for each question, and their boxes for each other stay closed. Then all that the
coalition learns of honest answers, whatever it tells to whom and in whatever order, is one sum of
those of a set G of at least m − t = h honest sites; the proof is in docs/proofs.md, and needs what is
refused here: terms whose threshold T has not 3(T − t) > 2(n − t), sets of fewer than m ≥ T dealers,
a second set for the same question, and points that are not those of the one list of names that is in
everybody's digest. h shares s of one scale add up to one discrete Laplace variable at ε and the terms'
sensitivity (`privcal.secure.shares`); that is why the scale comes from the terms and not from each
site. What G's other members add is independent of this site's rows: so that sum is ε-private. ∎

*Why nothing of this needs a clock.* Letters may take days, and whatever carries them may lose, delay,
reorder and repeat them, or show different ones to different sites. The proof has no rounds in it: it
speaks of the one set U(j) that each honest site j opens over all time, chosen by an adversary who has seen
everything before. Late, lost and repeated letters only choose U(j), or leave it empty; a CHECK tells
what its dealers know, as often as it is asked; a date only ever refuses. What has to last for days is
memory. A ledger that was put back to between SHARE and OPEN has forgotten an opening, and a second set
would break the promise. A backup of a night always lies there. So an opening moves the mark, which is
kept in another backup; the sealing key goes with the ledger, and in no backup; and a site that sees a
file of its own that it does not know stops (`transport.site.outbox`). One that was put back unnoticed by
all three counts as colluding. CHECK and OPEN go by the roster of the terms, SHARE by the present one: a
dealer who was removed since was one of the t.

*Why refusals tell nothing.* SHARE refuses by the request, the policy, the ledger and the roster, before
rows are looked at; `unavailable` after that is as it is for any answer. CHECK and OPEN look at no rows.
Whether a box opens is known to the dealer who made it: HPKE lets nobody make a valid one from another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from privcal.secure import canonical
from privcal.secure.boxes import Box, deal_box, open_box, sealed_size
from privcal.secure.canonical import from_base64
from privcal.secure.keys import SUITES, Keys, check_public_key, check_signing, member
from privcal.secure.shares import add_noise_share
from privcal.secure.sharing import PRIME, split
from privcal.secure.terms import MAX_SITES, Member, Members, Terms, read_terms
from privcal.trusted.book import Book
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import MAX_ROWS, SecureRules
from privcal.trusted.question import Question, check_name
from privcal.trusted.source import Rules, Source

MAX_TERMS = 300_000
"""Characters of the terms of a secure sum."""

_OPENING = "privcal opening 1"


@dataclass(frozen=True)
class Dealt:
    """What leaves a site in SHARE: a box for every site, by its name.

    `ledger` is the random id of the ledger that was charged, `max_rows` the most rows that its
    owner lets count, where there is such a bound.
    """

    boxes: dict[str, Box] = field(repr=False)
    ledger: str
    max_rows: int | None = None

    def text(self) -> str:
        """The one spelling: what the ledger keeps, and what is sent."""
        return canonical.write(vars(self))


def read_dealt(text: Any, terms: Terms) -> Dealt:
    """What a site dealt on these terms, from its one spelling; InputError for whatever else it is.

    Whether the boxes are signed is to be checked one by one (`privcal.secure.boxes.check_box`).
    """
    sizes = {sealed_size(terms, suite) for suite in SUITES}
    # A name may need 12 characters for one, where it is not in ASCII.
    names = sum(12 * len(site) for site in terms.sites)
    facts = canonical.read(text, 1000 + names + len(terms.sites) * (2 * max(sizes) + 120))
    if set(facts) != {"boxes", "ledger", "max_rows"}:
        raise InputError("what was dealt has other parts")
    if not isinstance(facts["boxes"], dict) or set(facts["boxes"]) != set(terms.sites):
        raise InputError("what was dealt must be a box for every site")
    boxes = {name: _read_box(facts["boxes"][name], sizes) for name in terms.sites}
    if facts["max_rows"] is not None:
        whole("max_rows", facts["max_rows"], 1, MAX_ROWS)
    return Dealt(boxes, check_name("the ledger's id", facts["ledger"]), facts["max_rows"])


def _read_box(box: Any, sizes: set[int]) -> Box:
    if not isinstance(box, list) or len(box) != 2:
        raise InputError("a box has two parts")
    sealed, signature = box
    if len(from_base64(sealed)) not in sizes:
        raise InputError("a box is of another size")
    from_base64(signature, 64)
    return sealed, signature


class Participant:
    """A source that takes part in secure sums, with its keys and the roster that its owner accepted.

    Parameters
    ----------
    name
        Its name on the roster.
    source
        Its data, ledger and policy.
    keys
        Its private keys. Their public halves must be those on the roster.
    members
        Everybody on the roster.
    rules
        What is wanted of secure sums beside what the policy in the ledger says of them (`secure` of
        `Policy`). Where neither says anything, all are refused.
    beside
        Other ledgers with which these keys are used. Which of them a question goes to is for the
        owner's settings to say, and these may change: what one of them opened stays opened.

    Examples
    --------
    >>> from privcal import Policy, Scores
    >>> from privcal.queries import Gap
    >>> from privcal.secure.keys import local_keys
    >>> rows, names = Scores(probabilities=[[0.8, 0.2]], labels=[0]), ("a", "b", "c")
    >>> policy = Policy(secure=SecureRules(colluding=0))
    >>> sources = {name: Source(rows, policy, ledger=None) for name in names}
    >>> keys = {name: local_keys(sources[name].ledger) for name in names}
    >>> members = Members({name: member(keys[name]) for name in names})
    >>> sites = [Participant(n, sources[n], keys[n], members, None) for n in names]
    >>> question = Question.of(Gap(), 0.1, "spring")
    >>> terms = Terms(question, "acme", names, 0, 3, 10, 1, members.digest)
    >>> boxes = {site.name: site.share(terms, "acme").boxes["a"] for site in sites}
    >>> sites[0].check(terms, "acme", boxes)
    ()
    >>> sites[0].open(terms, "acme", boxes) == sites[0].open(terms, "acme", boxes)
    True
    """

    def __init__(
        self,
        name: str,
        source: Source,
        keys: Keys,
        members: Members,
        rules: SecureRules | None,
        beside: Sequence[Book] = (),
    ) -> None:
        members = Members(dict(members.by_name), members.digest)  # our own copy
        held = [key for m in members.by_name.values() for key in (m.signing, m.sealing)]
        if len(set(held)) < len(held):
            raise InputError("two members of the roster have a key in common")
        self.name, self.source, self.rules = name, source, rules
        self._keys, self._members, self._beside = keys, members, beside
        self._known = members.by_name.get(name) == member(keys)

    def offer(self, terms: Terms, questions: Sequence[Question], asker: str) -> str | None:
        """The code with which this site would refuse one of these questions on these terms, or None.

        Nothing is charged, and rows play no part. What they cost is reserved, as `Source.offer` does;
        `terms` are those of any of them.
        """
        try:
            self.reserve(terms, questions, asker)
        except Refused as refused:
            return refused.code
        return None

    def reserve(
        self, terms: Terms, questions: Sequence[Question], asker: str, lasts: float = 0.0
    ) -> None:
        """The same as `offer`, but a refusal is raised, with its cause."""
        terms = self._own_copy(terms, asker)
        agree(self.source, terms, asker, self.rules)
        self.source.reserve(questions, asker, terms.alone, self.rules, lasts)

    def share(self, terms: Terms, asker: str) -> Dealt:
        """Charge the question, and deal this site's noisy answer in boxes that nobody opens alone.

        The same terms again give the same bytes again, free of charge.

        Raises
        ------
        Refused
            With a code; nothing was charged, unless it is `unavailable` or `lost`.
        """
        terms = self._own_copy(terms, asker)

        def deal(values: list[int]) -> str:
            rows = split(values, terms.threshold, len(terms.sites))
            boxes = {
                site: deal_box(terms, self.name, site, row, self._members, self._keys)
                for site, row in zip(terms.sites, rows, strict=True)
            }
            return Dealt(boxes, self.source.ledger.id, self.source.max_rows).text()

        return read_dealt(share_noisy_sums(self.source, terms, asker, deal, self.rules), terms)

    def check(self, terms: Terms, asker: str, boxes: Mapping[str, Box]) -> tuple[str, ...]:
        """The dealers, of those whose boxes for this site are given, whose box is bad.

        Free, and nothing is remembered. It tells of the boxes what their dealers could know.
        """
        terms = self._own_copy(terms, asker)
        agree(self.source, terms, asker, self.rules)
        opened = {name: self._opened(terms, name, box) for name, box in self._given(terms, boxes)}
        return tuple(name for name, numbers in opened.items() if numbers is None)

    def open(self, terms: Terms, asker: str, boxes: Mapping[str, Box]) -> list[int]:
        """The sum of the numbers that these dealers dealt for this site, modulo the prime.

        One set of dealers for each question, for ever: the ledger has it before the numbers leave.
        The same set again gives the same numbers; another is refused (`opened`). So is a set with
        a box that does not open: a site never goes on without one of those it was given.
        """
        terms = self._own_copy(terms, asker)
        agree(self.source, terms, asker, self.rules)
        given = self._given(terms, boxes)
        if len(given) < terms.needed:
            raise Refused("terms")

        def total() -> list[int]:
            dealt = [self._opened(terms, dealer, box) for dealer, box in given]
            rows = [numbers for numbers in dealt if numbers is not None]
            if len(rows) < len(given):
                raise Refused("bad_request")
            return [sum(column) % PRIME for column in zip(*rows, strict=True)]

        names = canonical.write([_OPENING, [dealer for dealer, _ in given]])
        digest = f"{terms.digest} {hashlib.sha256(names.encode('ascii')).hexdigest()}"
        for ledger in self._beside:
            before = ledger.opening(terms.question, asker) or digest
            if before != digest and before.startswith(terms.digest):
                raise Refused("opened")
        return self.source.ledger.open_once(terms.question, asker, digest, total)

    def _own_copy(self, terms: Terms, asker: str) -> Terms:
        """The terms as our own copy; Refused unless they are this asker's and go by our roster."""
        try:
            terms = read_terms(terms.text, MAX_TERMS)
        except (ValueError, TypeError, AttributeError) as error:  # it may be no terms at all
            raise Refused("bad_request") from error
        if terms.asker != asker:
            raise Refused("bad_request")
        if terms.roster != self._members.digest or not self._known:
            raise Refused("roster")
        if self.name not in terms.sites or not self._members.by_name.keys() >= set(terms.sites):
            raise Refused("roster")
        group = self._members.grouped(terms.groups)
        if any(group[site] != terms.group for site in terms.sites):
            raise Refused("terms")
        if not all(_sound(self._members.by_name[site]) for site in terms.sites):
            raise Refused("roster")  # now, while it costs nothing
        return terms

    def _given(self, terms: Terms, boxes: Mapping[str, Box]) -> list[tuple[str, Any]]:
        """The boxes by their dealers' names, sorted; Refused unless all of these are asked."""
        if not isinstance(boxes, Mapping) or not set(terms.sites) >= set(boxes):
            raise Refused("bad_request")
        return [(name, boxes[name]) for name in terms.sites if name in boxes]

    def _opened(self, terms: Terms, dealer: str, box: Any) -> list[int] | None:
        """The numbers that a dealer dealt for this site; None where the box is bad."""
        try:
            return open_box(terms, dealer, self.name, box, self._members, self._keys)
        except ValueError:
            return None


def agree(source: Source, terms: Terms, asker: str, secure: SecureRules | None = None) -> Rules:
    """What holds at `source` for a secure sum; Refused unless its owner lets `asker` ask on these terms.

    Rows play no part, and nothing is charged. The noise goes by the terms alone, so that all
    sites add shares of one noise: they must allow for as many rows of a person as count here.
    `secure` is what is wanted of secure sums beside the policy.
    """
    rules = source.secured(secure)
    wanted = rules.policy.secure
    if wanted is None:
        raise Refused("terms")
    if wanted.roster not in (None, terms.roster):
        raise Refused("roster")
    if (
        terms.colluding < wanted.colluding
        or terms.honest < wanted.min_honest
        or terms.alone > wanted.alone
        or terms.rows_per_person < rules.rows_per_person
    ):
        raise Refused("terms")
    rules.policy.check(terms.question, asker, secure=True)
    return rules


def share_noisy_sums(
    source: Source,
    terms: Terms,
    asker: str,
    deal: Callable[[list[int]], str],
    secure: SecureRules | None = None,
) -> str:
    """What `deal` makes of the noisy sums that `source` gives into a secure sum.

    Everything comes in the order in which `Source.answer` does it, and whatever is asked again on the
    same terms is the stored text again. `deal` seals the numbers: they are neither stored nor shown,
    but only its text.
    """
    rules = agree(source, terms, asker, secure)
    [asked] = source.allowed([terms.question], asker, rules, secure=True)
    digest = terms.about(asked).digest  # about the model at hand
    text = source.ledger.charge_share(asked, asker, rules.policy, digest, terms.nano_alone)
    if text is not None:
        return text
    try:
        exact = source.counted(asked, asker, rules)
    except Exception as error:  # whatever it is may tell of the rows
        raise Refused("unavailable") from error
    nano, text = asked.nano_epsilon, None
    with suppress(Exception):  # which is not kept: it might quote a number
        noisy = add_noise_share(exact, terms.sensitivity, nano, terms.honest, terms.alone)
        text = deal(noisy)
    if text is None:
        raise Refused("unavailable")
    source.ledger.store_share(asked, asker, text)
    return text


@lru_cache(maxsize=4 * MAX_SITES)
def _sound(keys: Member) -> bool:
    """Whether something can be sealed for these keys, and nobody else can sign for them. Tried once."""
    try:
        check_public_key(keys.sealing)
        check_signing(keys.signing)
    except InputError:
        return False
    return True
