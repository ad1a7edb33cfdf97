"""Studies with secure sums: beside each source's own noise, under the same trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from privcal.lab import study
from privcal.lab.study.claims import claims_of
from privcal.lab.study.grids import aggregated, read_grid, variants
from privcal.lab.study.paper import METHODS, PRIVATE
from privcal.lab.study.store import load
from privcal.planning.simulate.variants import Variant, epsilon_share, with_public
from privcal.report.study.explorer import chart_of, of_study
from privcal.report.study.figures import styles
from privcal.report.study.report import write
from privcal.report.study.tables import overall
from privcal.trusted.errors import InputError
from tests.support.builders import a_file
from tests.support.study_folder import THE_PAPERS, make_study

SECURE = "sketch(aggregation=secure)"
FOG = {"shifts": ["fog"], "trials": 20, "jobs": 1}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> str:
    return grid_of(tmp_path_factory.mktemp("grid"), 20, [0.3, 1.0])


def grid_of(folder: Path, sources: int, epsilons: list[float]) -> str:
    text = f"[epsilon]\nvalues = {epsilons}\nsources = {sources}\nsamples = 10\n"
    return str(a_file(folder / "own.toml", text))


def eces(found: pl.DataFrame, method: str) -> list[float]:
    return found.filter(pl.col("method") == method)["ece_mean"].to_list()


def test_both_is_what_each_and_secure_give_alone(grid: str) -> None:
    named = {**FOG, "grid": grid, "methods": ["uncalibrated", "one-source", "acc-t", "sketch"]}
    both = study.run(**named, aggregation="both")
    assert both["method"].unique(maintain_order=True).to_list() == [
        *("uncalibrated", "one-source", "acc-t", "acc-t(aggregation=secure)", "sketch", SECURE)
    ]
    for only, column in (("each", "each"), ("secure", "secure")):
        alone = study.run(**named, aggregation=only)
        same = both.filter(pl.col("method").is_in(alone["method"].to_list()))
        assert alone.equals(same)
        asked = alone.filter(pl.col("method").str.contains("sketch|acc-t"))
        assert set(asked["aggregation"]) == {column}
    assert study.run(**named).equals(study.run(**named, aggregation="each"))


def test_a_secure_sum_at_its_share_of_epsilon_is_as_good(tmp_path: Path) -> None:
    """As equal noise must be; at the same ε it is better."""
    share = epsilon_share(50)
    grid = grid_of(tmp_path, 50, [round(share, 4), 1.0])
    many = {**FOG, "trials": 200, "grid": grid, "methods": ["sketch"], "aggregation": "both"}
    found = study.run(**many)
    little, one = eces(found, "sketch")
    secure, secure_one = eces(found, SECURE)
    assert little > 1.5 * one
    assert secure == pytest.approx(one, rel=0.08)
    assert secure_one < 0.9 * one


def test_a_method_may_be_named_with_its_aggregation(grid: str) -> None:
    found = study.run(**FOG, grid=grid, methods=["acc-t", SECURE])
    assert set(found.select("method", "aggregation").unique().rows()) == {
        ("acc-t", "each"),
        (SECURE, "secure"),
    }


def test_names_with_an_aggregation_are_read_back() -> None:
    for variant in (
        Variant("sketch", aggregation="secure"),
        Variant("sketch", (("public", 2000),), "secure"),
        Variant("acc-t", (("bounds", (0.5, 6.0)), ("iterations", 4)), "secure"),
    ):
        assert Variant.read(str(variant)) == variant
    assert Variant.read("sketch(aggregation=each)") == Variant("sketch")
    with pytest.raises(InputError, match="there is no aggregation 'safe'; there are each, secure"):
        Variant.read("sketch(aggregation=safe)")


def test_what_cannot_be_summed_securely_is_refused_before_anything_runs(
    tmp_path: Path, grid: str
) -> None:
    for wrong, says in (
        (
            {"aggregation": "safe", "grid": grid},
            "no aggregation 'safe'; there are each, secure, both",
        ),
        ({"aggregation": "secure", "grid": grid_of(tmp_path, 2, [1.0])}, "at least 3 sources"),
        ({"aggregation": "both", "grid": "factors"}, "the grid factors"),
    ):
        with pytest.raises(InputError, match=says):
            study.run(**FOG, **wrong, out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_study_without_secure_sums_has_no_word_of_them(tmp_path: Path, grid: str) -> None:
    """So one that an older version began goes on."""
    study.run(**FOG, grid=grid, methods=["acc-t"], out=tmp_path / "each")
    assert "aggregation" not in (tmp_path / "each" / "study.json").read_text()
    for part in (tmp_path / "each" / "parts").iterdir():
        assert "aggregation" not in part.read_text()
    results = load(tmp_path / "each")
    assert results.secure == ""
    assert "secure" not in overall(results).caption


def test_tables_figures_and_page_show_both(tmp_path: Path, grid: str) -> None:
    out = tmp_path / "both"
    given = {**FOG, "trials": 3, "grid": grid, "methods": ["sketch"], "public_rows": 200}
    study.run(**given, aggregation="both", out=out, keep_trials=True)
    results = load(out)
    names = [str(variant) for variant in results.variants]
    assert names == [
        *("sketch", SECURE, "sketch(public=200)", "sketch(public=200, aggregation=secure)")
    ]
    table = overall(results)
    assert [row[0] for row in table.rows] == names
    assert "aggregation=secure: a secure sum under the usual terms" in table.caption
    document = of_study(results)
    assert [m["name"] for m in document["methods"]] == names
    assert len({(m["look"], m["dashed"], m["dotted"]) for m in document["methods"]}) == 4
    drawn = chart_of(document, 0, "epsilon", "ece").series
    assert [series.dotted for series in drawn] == ["secure" in name for name in names]
    page = write(results, out / "report.html").read_text("utf-8")
    assert "All sources answer here." in page
    assert page.count('class="series line look4 dashed dotted"') == page.count(
        'class="series line look4 dotted"'
    )
    assert 'class="series line look4 dotted"' in page
    kept = pl.read_parquet(out / "trials.parquet")
    assert set(kept["aggregation"]) == {"each", "secure"}


def test_a_method_with_secure_sums_is_dotted_in_its_own_colour() -> None:
    each, secure, public, both = styles(
        [
            Variant("acc-t"),
            Variant("acc-t", aggregation="secure"),
            with_public("acc-t", 9),
            Variant("acc-t", (("public", 9),), "secure"),
        ]
    ).values()
    assert len({style.colour for style in (each, secure, public, both)}) == 1
    assert len({str(style.dashes) for style in (each, secure, public, both)}) == 4
    assert [s.on_page["dashed"] for s in (each, secure, public, both)] == [False, False, True, True]
    assert [s.on_page["dotted"] for s in (each, secure, public, both)] == [False, True, False, True]


def test_the_paper_is_compared_with_what_each_source_says_by_itself(tmp_path: Path) -> None:
    """Secure sums that are far better change no claim, and stand in no column of the paper's."""

    def ece(shift: str, method: str, setting: object) -> float:
        return 0.001 if "secure" in method else 0.1 + len(method) / 1000

    secure = [Variant(variant.method, aggregation="secure") for variant in PRIVATE]
    given = {**THE_PAPERS, "exact": dict.fromkeys(("base", "nll-t", "acc-t", "ece-t"), 0.1)}
    plain = load(make_study(tmp_path / "plain", ece, **given))
    both = load(make_study(tmp_path / "both", ece, [*METHODS, *secure], **given))
    assert both.reported is not None
    assert claims_of(both) == claims_of(plain)
    table = overall(both)
    paper = table.header.index("median ECE (paper)")
    for row in table.rows:
        assert (row[paper] is None) == ("secure" in str(row[0]))
    for r, _ in table.marked:
        assert "secure" not in str(table.rows[r][0])


def test_a_store_from_before_has_no_secure_sums(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "old", lambda *_: 0.1)
    before = pl.read_parquet(folder / "results.parquet")
    assert "aggregation" not in before.columns
    found = load(folder).results
    assert set(found["aggregation"]) == {"each"}
    assert found.drop("aggregation").equals(before)


def test_secure_sums_are_summed_over_the_very_same_trials(tmp_path: Path) -> None:
    """Without noise the two are the same."""
    file = a_file(
        tmp_path / "own.toml",
        "[skew]\nvalues = [1.0]\nsources = 20\nsamples = 10\nepsilon = 1000000.0\n",
    )
    given = {**FOG, "trials": 3, "grid": str(file), "methods": ["sketch"]}
    found = study.run(**given, aggregation="both")
    each, secure = found["ece_mean"].to_list()
    assert each == pytest.approx(secure, abs=1e-3)


def test_variants_keep_their_own_aggregation(grid: str) -> None:
    chosen = variants("own", ["sketch", "uncalibrated", "acc-t(aggregation=secure)"])
    names = [str(v) for v in aggregated(chosen, "both", "own", read_grid(grid))]
    assert names == ["uncalibrated", "sketch", SECURE, "acc-t(aggregation=secure)"]


def test_the_command_runs_both(run: Any, tmp_path: Path, grid: str) -> None:
    out = tmp_path / "both"
    given = ("--grid", grid, "--methods", "sketch", "--shifts", "fog", "--trials", 2, "--jobs", 1)
    run.ok("study", "run", *given, "--aggregation", "both", "--out", out)
    said = run.json("study", "table", out, "--only", "overall")
    assert [row[0] for row in said[0]["rows"]] == ["sketch", SECURE]
    code, _, stderr = run("study", "run", *given, "--aggregation", "all", "--out", tmp_path / "no")
    assert (code, "there is no aggregation 'all'" in stderr) == (2, True)
