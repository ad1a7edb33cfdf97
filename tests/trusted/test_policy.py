"""An owner's rules for secure sums: read, kept, narrowed, and held."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privcal import InputError, Ledger, Policy, Refused
from privcal.trusted.epsilon import NANO
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.conftest import Run
from tests.support.builders import a_file, sentence

FILE = """
epsilon = 2
[secure]
required = true
roster = "0123 4567"
colluding = 10
min_honest = 11
alone = 5
epsilon_alone = 6.5
"""
RULES = SecureRules(10, "0123 4567", 11, 5, 6.5, required=True)


def written(tmp_path: Path, text: str) -> Path:
    return a_file(tmp_path / "policy.toml", text)


def test_the_rules_are_a_table_of_the_policys_file(tmp_path: Path) -> None:
    policy = Policy.load(written(tmp_path, FILE))
    assert policy == Policy(epsilon=2.0, secure=RULES)
    kept = json.loads(json.dumps(policy.to_dict()))
    assert Policy.of(kept, "of the ledger") == policy
    assert hash(policy) == hash(Policy.of(kept, "of the ledger"))


def test_only_colluding_must_be_said(tmp_path: Path) -> None:
    policy = Policy.load(written(tmp_path, "[secure]\ncolluding = 3\n"))
    assert policy.secure == SecureRules(3, None, 2, 10, None, required=False)
    assert policy.to_dict()["secure"] == {
        "colluding": 3,
        "min_honest": 2,
        "alone": 10,
        "required": False,
    }


def test_a_file_without_the_table_leaves_the_rules_and_one_with_it_replaces_them(
    tmp_path: Path,
) -> None:
    over = Policy(epsilon=2.0, secure=RULES)
    assert Policy.load(written(tmp_path, "epsilon = 1\n"), over).secure == RULES
    changed = Policy.load(written(tmp_path, "[secure]\ncolluding = 3\n"), over)
    assert changed == Policy(epsilon=2.0, secure=SecureRules(3))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("secure = 3", "secure must be an object, not 3"),
        ("[secure]\nalone = 3", "secure: colluding is missing"),
        ("[secure]\ncolluding = -1", "secure: colluding must be a whole number"),
        ("[secure]\ncolluding = 0.2", "secure: colluding must be a whole number"),
        ("[secure]\ncolluding = true", "secure: colluding must be a whole number"),
        ("[secure]\ncolluding = 1\nmin_honest = 0", "secure: min_honest must be a whole number"),
        ("[secure]\ncolluding = 1\nalone = 0", "secure: alone must be a whole number"),
        ("[secure]\ncolluding = 1\nalone = 1001", "secure: alone must be a whole number"),
        ("[secure]\ncolluding = 1\nepsilon_alone = 0", "secure: epsilon_alone must be above 0"),
        ("[secure]\ncolluding = 1\nroster = ''", "secure: roster must be 1 to 200 printable"),
        ("[secure]\ncolluding = 1\nrequired = 1", "secure: required must be true or false, not 1"),
        ("[secure]\ncolluding = 1\ncoluding = 2", "secure has no 'coluding'; there are alone,"),
    ],
)
def test_wrong_rules_are_told_in_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    assert says in sentence(Policy.load, written(tmp_path, text))


def test_what_everybody_else_may_learn_is_so_many_times_the_total_unless_it_is_said() -> None:
    assert Policy(epsilon=2.0).nano_total_alone == 2 * NANO
    assert Policy(epsilon=2.0, secure=SecureRules(1)).nano_total_alone == 20 * NANO
    assert Policy(epsilon=2.0, secure=SecureRules(1, alone=3)).nano_total_alone == 6 * NANO
    assert Policy(epsilon=2.0, secure=SecureRules(1, epsilon_alone=4)).nano_total_alone == 4 * NANO


@pytest.mark.parametrize(
    ("required", "secure", "code"),
    [(False, False, None), (False, True, None), (True, True, None), (True, False, "not_secure")],
)
def test_where_secure_sums_are_required_nothing_else_is_answered(
    required: bool, secure: bool, code: str | None
) -> None:
    policy = Policy(secure=SecureRules(1, required=required))
    asked, said = Question.of(Gap(), 0.1, "spring"), None
    try:
        policy.check(asked, "ann", secure=secure)
    except Refused as refused:
        said = refused.code
    assert said == code


def test_who_may_not_ask_is_not_told_about_secure_sums() -> None:
    policy = Policy(askers=("ann",), secure=SecureRules(1, required=True))
    with pytest.raises(Refused, match=r"^asker"):
        policy.check(Question.of(Gap(), 0.1, "spring"), "eve")


# --- narrowing -------------------------------------------------------------------------------------

AMOUNTS = st.integers(1, 5000).map(lambda n: n / 100)
SOME_RULES = st.builds(
    SecureRules,
    st.integers(0, 20),
    st.just(None),
    st.integers(1, 20),
    st.integers(1, 20),
    st.one_of(st.none(), AMOUNTS),
    st.booleans(),
)
POLICIES = st.builds(
    lambda epsilon, secure: Policy(epsilon=epsilon, secure=secure),
    AMOUNTS,
    st.one_of(st.none(), SOME_RULES),
)


@given(POLICIES, POLICIES)
@example(  # one tells a limit, and the other's is the lower though it is not told
    Policy(epsilon=2.0, secure=SecureRules(1, alone=10)),
    Policy(epsilon=2.0, secure=SecureRules(1, epsilon_alone=50.0)),
)
@example(Policy(epsilon=1.0), Policy(epsilon=1.0, secure=SecureRules(1, alone=10)))
def test_narrowed_rules_allow_nothing_that_the_owners_do_not(owner: Policy, other: Policy) -> None:
    both = owner.narrowed(other)
    assert both.nano_total_alone <= owner.nano_total_alone
    for one in (owner, other):
        if one.secure is None:
            continue
        assert both.secure is not None
        assert both.nano_total_alone <= one.nano_total_alone
        assert both.secure.colluding >= one.secure.colluding
        assert both.secure.min_honest >= one.secure.min_honest
        assert both.secure.alone <= one.secure.alone
        assert both.secure.required >= one.secure.required
    if owner.secure is None and other.secure is None:
        assert both.secure is None
    assert both.narrowed(other) == both  # and no less by saying it again


def test_rules_for_another_roster_do_not_mix() -> None:
    one, other = (Policy(secure=SecureRules(1, roster=name)) for name in ("0123", "4567"))
    with pytest.raises(InputError, match="for another roster"):
        one.narrowed(other)
    for pair in ((one, Policy(secure=SecureRules(1))), (Policy(secure=SecureRules(1)), one)):
        narrowed = pair[0].narrowed(pair[1])
        assert narrowed.secure is not None
        assert narrowed.secure.roster == "0123"


def test_a_smaller_total_means_a_smaller_one_alone_unless_that_was_said() -> None:
    owner = Policy(epsilon=2.0, secure=SecureRules(1, alone=10))
    assert owner.narrowed(Policy(epsilon=0.5)).nano_total_alone == 5 * NANO
    told = replace(owner, secure=SecureRules(1, alone=10, epsilon_alone=8))
    assert told.narrowed(Policy(epsilon=0.5)).nano_total_alone == 8 * NANO


# --- in a ledger -----------------------------------------------------------------------------------


def test_the_rules_are_kept_in_the_ledger_and_shown_as_they_are_written(
    tmp_path: Path, run: Run
) -> None:
    ledger = Ledger.create(tmp_path / "l.ledger", Policy(), unit="row")
    told, _ = run.ok("ledger", "policy", ledger.path, "--policy", written(tmp_path, FILE))
    assert ledger.policy == Policy(epsilon=2.0, secure=RULES)
    rules, _, totals = told.partition("epsilon spent")
    assert Policy.of(tomllib.loads(rules), "as shown") == ledger.policy
    assert "0; 2 remains of 2" in totals
    assert "against everybody else together" in totals
    assert "6.5 remains of 6.5" in totals
    code, _, said = run("ledger", "policy", ledger.path, "--epsilon", "3")
    assert (code, ledger.policy.secure) == (0, RULES), said


def test_a_policy_that_older_software_kept_has_no_rules_for_secure_sums() -> None:
    assert Policy.of({"epsilon": 1.0}, "of the ledger").secure is None
