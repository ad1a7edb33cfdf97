"""One HTML page that needs nothing else: tables, figures, and the paper's claims checked."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from privcal.files import replacing
from privcal.study.paper.claim import FAILS, HOLDS, UNKNOWN, Claim
from privcal.study.paper.claims import claims_of
from privcal.study.paper.overall import in_short
from privcal.study.paper.ranking import beside_the_paper, ece_against_others
from privcal.study.paper.sweeps import more_helps_table
from privcal.study.paper.theory import THEORY
from privcal.study.results import Results
from privcal.study.show.figures import Picture, drawing, pictures, save, shift_title
from privcal.study.show.tables import all_tables, overall
from privcal.study.table import Table
from privcal.version import __version__

CSS_CLASSES = {HOLDS: "holds", FAILS: "fails", UNKNOWN: "open"}
VERDICT_MARKS = {HOLDS: "✓", FAILS: "✗", UNKNOWN: "?"}


def write(results: Results, path: str | Path, factors: Results | None = None) -> Path:
    """Write the page. `results` may itself be a study of factors; then it has only that part."""
    main: Results | None = results
    if results.is_factors:
        main, factors = None, results
    path = Path(path)
    with replacing(path) as part:
        part.write_text(_page(main, factors), encoding="utf-8")
    return path


def _page(main: Results | None, factors: Results | None) -> str:
    study = main or factors
    assert study is not None
    claims = claims_of(main, factors)
    sections = [("summary", "In short", _summary(claims, main))]
    if main is not None and main.perturbations:
        title = "The paper's Table 1" if main.reported else "Calibration under privacy"
        sections.append(("table", title, _table(overall(main))))
    sections.append(("claims", "The paper's claims, one by one", _claims(claims)))
    sections.append(("theory", "What the paper proves, and where it slips", _list(THEORY)))
    if main is not None:
        sections += _main_sections(main)
    if factors is not None:
        sections.append(("factors", "What helps and what hurts", _factors(factors)))
    sections.append(("method", "How this was made", _method(study, factors)))
    title = f"Recalibration under differential privacy: {study.title}"
    toc = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{escape(name)}</h2>{content}</section>'
        for key, name, content in sections
    )
    css = (files("privcal.study.show") / "report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{css}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><p class="soft">{escape(_facts(study))}</p></header>'
        f'<nav aria-label="Contents"><ul>{toc}</ul></nav><main>{body}</main></body></html>\n'
    )


def _facts(study: Results) -> str:
    config = study.config
    return (
        f"{len(config['shifts'])} shifts × {len(config['settings'])} settings × "
        f"{len(config['methods'])} {'variants' if study.is_factors else 'methods'} × "
        f"{study.trials:,} trials; grid {config['grid']}, {_public(study)}"
        f"seed {config.get('seed', 0)}; privcal {__version__}"
    )


def _public(study: Results) -> str:
    rows = study.config.get("public_rows", 0)
    return f"{rows:,} public rows, " if rows else ""


# --- sections ----------------------------------------------------------------------------


def _main_sections(main: Results) -> list[tuple[str, str, str]]:
    rest = [table for table in all_tables(main) if table.name != "overall"]
    drawn = list(pictures(main))
    general = [p for p in drawn if p.shift is None]
    ranked = beside_the_paper(main)
    sections = []
    if ranked is not None:
        table, notes = ranked
        sections.append(("ranking", "The order of the methods", _table(table) + _list(notes)))
    notes = ece_against_others(main)
    if notes:
        mislead = (
            "<p>The ECE alone can mislead: a constant confidence equal to the accuracy has almost "
            "none, and tells nobody which answers to trust. The Brier score, the mean squared "
            "error of the confidence, does not forgive that. The area under the risk–coverage "
            "curve (AURC), the mean error rate of the k most confident rows over all k, asks only "
            "whether right answers come before wrong ones. Both stand beside the ECE here.</p>"
        )
        sections.append(("brier", "ECE beside Brier and AURC", mislead + _list(notes)))
    if main.perturbations:
        sections.append(("more", "More sources, samples, ε", _table(more_helps_table(main))))
    sections += [
        ("tables", "All tables", "".join(map(_table, rest))),
        ("figures", "Figures", "".join(map(_figure, general))),
        (
            "shifts",
            "Each shift",
            "".join(_folded(p, p.shift) for p in drawn if p.shift is not None),
        ),
    ]
    return sections


def _factors(factors: Results) -> str:
    drawn = "".join(map(_figure, pictures(factors)))
    tables = "".join(map(_table, all_tables(factors)))
    return f'<p class="soft">{escape(factors.title)}; {escape(_facts(factors))}</p>{drawn}{tables}'


def _method(study: Results, factors: Results | None) -> str:
    notes = [
        "For each trial the rows of a shift are split at random into sources of equally many rows "
        "and a test set of all the rest; a method asks the sources, with noise; ECE (15 bins of "
        "equal width), Brier and AURC are measured on the test set and averaged over trials.",
        "Noise is simulated here, from the law that real sources' noise has; the methods' code is "
        "the one that ships.",
        "A verdict rests on differences larger than 1.96 standard errors over trials; where it "
        "says “best”, “good” or “on a par”, the rule is in the text. It is about this network and "
        "these perturbations.",
        "ε is what each source spends on one run. Acc-T, NLL-T, ECE-T, histogram binning, no "
        "recalibration (uncalibrated) and one source are the paper's. It does not say how it fits one "
        "source; of the ways to do so, ECE-T's own search on that source's rows, without noise "
        "(one-source-ece), comes nearest to its figures. Every other name is a method it does not "
        "have; one-source and one-source-nll are exact fits by accuracy and by NLL.",
    ]
    if "skew" in study.sweeps:
        notes.append(
            "Along skew, sources are not alike: their sizes are log-normal, and each has its own "
            "proportions of labels (in the shift “mixed”, of shifts), from a Dirichlet law whose "
            "concentration is the skew times the overall proportions. Averages of sums over the "
            "same rows do not depend on who holds them, so methods that ask for sums notice only "
            "that the private rows together differ in make-up from the test rows."
        )
    if _public(study):
        notes.append(
            "Public rows are unperturbed ones, set aside at random and the same for all shifts: "
            "never private and never tested on. A method named with “public” was given them, "
            "with their labels."
        )
    if factors is None:
        notes.append(
            "The directions of the paper's table of factors need a second study: "
            "privcal study run --grid factors --out FOLDER, then privcal study report with "
            "--factors FOLDER."
        )
    if study.remark:
        notes.append(study.remark)
    return _list(notes)


def _summary(claims: Mapping[str, Sequence[Claim]], main: Results | None) -> str:
    every = [claim for topic in claims.values() for claim in topic]
    counts = ", ".join(
        f"{count} {words}"
        for verdict, words in ((HOLDS, "hold"), (FAILS, "do not"), (UNKNOWN, "cannot be told"))
        if (count := sum(c.verdict == verdict for c in every))
    )
    groups = "".join(
        f'<table><thead><tr><th scope="col" colspan="2" class="text">{escape(topic)}</th></tr></thead>'
        + "<tbody>"
        + "".join(
            f'<tr><td class="text"><a href="#claim-{_slug(c.name)}">{escape(c.name)}</a></td>'
            f'<td class="text">{_badge(c)}</td></tr>'
            for c in group
        )
        + "</tbody></table>"
        for topic, group in claims.items()
    )
    text = f"Of {len(every)} claims of the paper about its methods, {counts} here."
    if main is not None and not main.reported:
        text += " They are checked at this study's settings and shifts, which are not the paper's."
    return f'<p>{text}{escape(in_short(main))}</p><div class="groups">{groups}</div>'


def _claims(claims: Mapping[str, Sequence[Claim]]) -> str:
    return "".join(
        f"<h3>{escape(topic)}</h3>{''.join(map(_claim, group))}" for topic, group in claims.items()
    )


def _claim(claim: Claim) -> str:
    return (
        f'<article class="claim" id="claim-{_slug(claim.name)}"><h4>{escape(claim.name)}: '
        f'{_badge(claim)}</h4><p class="said">The paper: {escape(claim.statement)}</p>'
        f"<p>{escape(claim.reading)}</p>{_list(claim.details) if claim.details else ''}</article>"
    )


def _badge(claim: Claim) -> str:
    mark, kind = VERDICT_MARKS[claim.verdict], CSS_CLASSES[claim.verdict]
    return f'<span class="verdict {kind}">{mark}&nbsp;{escape(claim.verdict)}</span>'


# --- pieces ------------------------------------------------------------------------------


def _table(table: Table) -> str:
    kinds = [
        " ".join(["text"] * table.is_text(c) + ["theirs"] * ("(paper)" in heading))
        for c, heading in enumerate(table.header)
    ]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(h).replace(" = ", "&nbsp;=&nbsp;")}</th>'
        for kind, h in zip(kinds, table.header, strict=True)
    )
    lines = []
    for r, row in enumerate(table.rows):
        cells = []
        for c in range(len(row)):
            text = escape(table.text(r, c))
            text = f"<b>{text}</b>" if (r, c) in table.best else text
            cells.append(f'<td class="{kinds[c]}">{text}</td>')
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f'<h3 id="table-{escape(table.name)}">{escape(table.title)}</h3><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="caption">{escape(table.caption)}</p>'
    )


def _figure(picture: Picture) -> str:
    out = io.BytesIO()
    with drawing():
        save(picture.build(), out, "svg")
    data = base64.b64encode(out.getvalue()).decode("ascii")
    caption = escape(picture.caption)
    return (
        f'<figure id="{escape(picture.name)}"><div class="scroll"><img alt="{caption}" '
        f'src="data:image/svg+xml;base64,{data}"></div><figcaption>{caption}</figcaption></figure>'
    )


def _folded(picture: Picture, shift: str) -> str:
    return f"<details><summary>{escape(shift_title(shift))}</summary>{_figure(picture)}</details>"


def _list(notes: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
