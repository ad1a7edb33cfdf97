"""A ledger as an entry for a public registry of differentially private deployments.

Dwork, Kohli and Mulligan (2019) proposed that whoever uses differential privacy tells the public how:
what is released, whom ε protects, how large it is, how it adds up. The parts of an entry are those
that such registries ask for, at their most detailed tier. An entry is a draft: what only the owner
can say is marked, and the owner reads it before it is sent anywhere.

It is made from the policy, the unit of protection and the charges alone. There is no path in it, no
number of rows, no name of an asker or a campaign, no answer: nothing that depends on a row.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.files import replacing
from privcal.privacy.epsilon import as_odds, from_nano
from privcal.privacy.ledger import Ledger
from privcal.privacy.policy import Policy
from privcal.queries import parse
from privcal.version import __version__

OWNER = "TO BE SAID BY THE OWNER: "
"""Before what no ledger knows."""


def entry_of(ledger: Ledger) -> dict[str, Any]:
    """The entry of one ledger; InputError where nothing has left it."""
    fixed, policy = ledger.facts, ledger.policy
    charges = [entry for entry in ledger.entries() if entry.asked]
    if not charges:
        raise InputError("nothing has left this ledger yet: there is nothing to register")
    queries = (parse(charge.query) for charge in charges)
    asked = {query.kind: query.describe() for query in queries}
    own = policy.budget == "person"
    spent = ledger.spent
    shares = spent.alone != spent.nano or any(charge.kind == "share" for charge in charges)
    both = policy.cap if own else spent
    # What holds whatever others compute and however many collude: that is pure.
    epsilon = from_nano(both.alone if shares else both.nano)
    withstood = from_nano(both.nano) if shares else None
    return checked(
        {
            "status": "Draft",
            "tier": 3,
            "deployment": {
                "product": {
                    "name": f"{OWNER}what the calibrated model is called",
                    "data_curators": [fixed.name],
                    "intended_use": f"{OWNER}what the model is used for",
                    "data_product_type": "Machine learning model",
                    "description": _short(
                        "Noisy sums from which a classifier's confidence is calibrated: "
                        + "; ".join(asked.values())
                    ),
                    "publication_date": min(charge.time for charge in charges)[:10],
                },
                "dp_flavor": {
                    "name": "Pure DP",
                    "data_domain": "A classifier's outputs for labelled samples, with or without "
                    "person ids; any number of rows.",
                    "unprotected_quantities": "None. The number of rows is protected too."
                    if policy.rows is None
                    else "About how many rows there are, as the curator declares to whoever may ask.",
                },
                "privacy_loss": _loss(fixed.unit, policy, epsilon, withstood),
                "model": _model(len(charges), shares),
                "accounting": _ACCOUNTING,
                "implementation": {
                    "pre_processing_eda_hyperparameter_tuning": "Each row is clipped and rounded by "
                    "itself to bounds that are fixed beforehand; nothing is decided by looking at rows. "
                    f"{OWNER}how epsilon and the settings were chosen.",
                    "mechanisms": "The Laplace mechanism on whole numbers: discrete Laplace noise from "
                    "OpenDP, scaled to the L1 sensitivity of each query, on a grid of 2^-20. No "
                    "floating-point number meets the data and the noise."
                    + (_SHARES if shares else ""),
                    "justification": f"{OWNER}why this epsilon. At epsilon {epsilon:g}, "
                    f"{as_odds(epsilon)}.",
                },
                "resources": {
                    "contact": f"{OWNER}whom to ask",
                    "software": f"privcal {__version__}",
                },
            },
        }
    )


_SHARES = (
    " In secure sums each curator adds an exact share of that noise (a difference of two negative binomial "
    "variables), such that the shares of the honest curators in a sum make the whole noise, and discrete "
    "Laplace noise of its own at a multiple of epsilon."
)


def _loss(unit: str, policy: Policy, epsilon: float, withstood: float | None) -> dict[str, Any]:
    neighbours = "Neighbouring data sets differ by adding or removing one row."
    rows, own = policy.rows_per_person, policy.budget == "person"
    if unit == "person":
        counted = "1 of them counts" if rows == 1 else f"{rows} of them count"
        neighbours = (
            "Neighbouring data sets differ by adding or removing all rows of one person; at most "
            f"{counted}."
        )
    total = policy.nano_total if withstood is None else policy.nano_total_alone
    about = (
        "Spent so far, over all answers and all askers. The policy allows "
        f"{from_nano(total):g} in all."
    )
    if own:
        about = (
            "The most that may ever be spent on any one person, over all answers and all askers."
        )
    if withstood is not None:
        about += (
            " It holds whatever others compute and however many of them collude. Against the asker, the "
            "server and as many curators as each secure sum withstands, bounded in what they can compute, "
            f"it is {withstood:g}."
        )
    return {
        "privacy_unit": unit.capitalize(),
        "privacy_unit_description": f"{neighbours} Changing a record instead costs twice as much.",
        "privacy_parameters": {"epsilon": epsilon},
        "privacy_parameters_description": f"{about} Of this curator alone: somebody in the data of "
        "several curators is exposed at each.",
    }


def _model(answers: int, shares: bool) -> dict[str, Any]:
    sums = (
        " Answers in secure sums leave cut into sealed shares, of which only the total over many curators "
        "is ever opened."
    )
    return {
        "model_name": "Federated",
        "model_name_description": "Each curator adds the noise itself, on its own machine, before "
        "anything leaves. Nobody else is trusted: not the asker, the server or other curators."
        + (sums if shares else ""),
        "release_type": "One release" if answers == 1 else "Multiple releases",
        "release_type_description": "Every answer is charged to one ledger for ever; when the budget is "
        "spent, nothing more is answered.",
        "access_type": "Interactive",
        "access_type_description": "An asker whom the policy names may ask queries of a closed family. "
        "The budget is one for all askers, so that they may collude.",
    }


_ACCOUNTING = {
    "composition": "Sequential: the epsilons of all answers about the same people add up, in whole "
    "nano-epsilons, each charged durably before its noise is drawn.",
    "post_processing": "Averages over curators, and a calibration map fitted to them. None of it looks at "
    "rows again.",
}


def _short(text: str) -> str:
    return text if len(text) <= 2000 else f"{text[:1999]}…"


def save_entry(path: str | Path, entry: dict[str, Any]) -> None:
    """Write an entry as YAML, whole or not at all."""
    with replacing(path) as part:
        part.write_text(to_yaml(checked(entry)), encoding="utf-8")


# --- YAML ------------------------------------------------------------------------------------


def to_yaml(value: Any, indent: str = "") -> str:
    """Mappings and lists in block style, and every scalar as JSON writes it, which YAML reads.

    >>> print(to_yaml({"a": [1, "x: y"], "b": {"c": True}}), end="")
    a:
      - 1
      - "x: y"
    b:
      c: true
    """
    lines = []
    for name, part in value.items():
        if isinstance(part, dict):
            lines.append(f"{indent}{name}:\n{to_yaml(part, indent + '  ')}")
        elif isinstance(part, list):
            parts = "".join(f"{indent}  - {_scalar(p)}\n" for p in part)
            lines.append(f"{indent}{name}:\n{parts}")
        else:
            lines.append(f"{indent}{name}: {_scalar(part)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    # What YAML allows only in its escaped form, and JSON also as it is.
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text
    )


# --- the schema ------------------------------------------------------------------------------


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of an entry, which comes with the package."""
    text = (files("privcal") / "schemas" / "registry.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def checked(entry: dict[str, Any]) -> dict[str, Any]:
    """The same entry; InputError where it does not follow the schema."""
    if problem := _problem(entry, schema(), "the entry"):
        raise InputError(problem)
    return entry


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
}


def _problem(value: Any, rule: dict[str, Any], where: str) -> str | None:
    """What is wrong with a value, by as much of JSON Schema as our schema uses."""
    if "$ref" in rule:
        rule = schema()["$defs"][rule["$ref"].rpartition("/")[2]]
    if "enum" in rule and value not in rule["enum"]:
        return f"{where} must be one of {rule['enum']}, not {value!r}"
    if "type" in rule and (not isinstance(value, _TYPES[rule["type"]]) or isinstance(value, bool)):
        return f"{where} must be of type {rule['type']}"
    if isinstance(value, str):
        return _text_problem(value, rule, where)
    if isinstance(value, (int, float)) and value <= rule.get("exclusiveMinimum", float("-inf")):
        return f"{where} must be above {rule['exclusiveMinimum']}"
    if isinstance(value, list):
        if len(value) < rule.get("minItems", 0):
            return f"{where} must not be empty"
        found = (_problem(v, rule["items"], f"{where}[{i}]") for i, v in enumerate(value))
        return next(filter(None, found), None)
    if isinstance(value, dict):
        return _object_problem(value, rule, where)
    return None


def _text_problem(value: str, rule: dict[str, Any], where: str) -> str | None:
    if not rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value)):
        return f"{where} must have {rule['minLength']} to {rule['maxLength']} characters"
    if "pattern" in rule and not re.search(rule["pattern"], value):
        return f"{where} must look like {rule['pattern']}"
    return None


def _object_problem(value: dict[str, Any], rule: dict[str, Any], where: str) -> str | None:
    known = rule["properties"]
    if missing := [name for name in rule["required"] if name not in value]:
        return f"{where} lacks {missing[0]}"
    if unknown := [name for name in value if name not in known]:
        return f"{where} has an unknown {unknown[0]}"
    found = (_problem(v, known[name], f"{where}.{name}") for name, v in value.items())
    return next(filter(None, found), None)
