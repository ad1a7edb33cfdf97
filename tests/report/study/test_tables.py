"""A study's tables: right figures, ours beside the paper's, in three formats."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from pathlib import Path

import polars as pl
import pytest

from privcal.lab.study.grids import Setting
from privcal.lab.study.paper import ACC_T, METHODS, reported
from privcal.lab.study.store import load
from privcal.report.study.tables import (
    Table,
    all_tables,
    overall,
    render,
    to_csv,
    to_latex,
    to_markdown,
    together,
    without_privacy,
)
from privcal.trusted.errors import InputError
from tests.support.study_folder import (
    EXACT,
    FACTOR_SETTINGS,
    SETTINGS,
    SHIFTS,
    VARIANTS,
    as_the_paper_says,
    factors_as_the_paper_says,
    make_study,
)
from tests.support.study_folder import few_will_do as few_will_do  # a fixture

pytestmark = pytest.mark.usefixtures("few_will_do")


def uneven(shift: str, method: str, setting: Setting) -> float:
    """No two cells alike, and the unperturbed scores far off."""
    if shift == "clean":
        return 0.9
    a, b, c = SHIFTS.index(shift), len(method), SETTINGS.index(setting)
    return 0.01 + 0.1 * ((a * 7 + b * 13 + c * c * 5) % 29) / 29


def cell(table: Table, row: str, column: str) -> object:
    [found] = [r for r in table.rows if r[0] == row]
    return found[table.header.index(column)]


def test_medians_and_means_are_over_perturbations_and_settings_and_not_over_clean(
    tmp_path: Path,
) -> None:
    table = overall(load(make_study(tmp_path / "s", uneven)))
    for method in map(str, METHODS):
        values = [uneven(s, method, x) for s in SHIFTS if s != "clean" for x in SETTINGS]
        assert cell(table, method, "median ECE") == pytest.approx(statistics.median(values))
        assert cell(table, method, "mean ECE") == pytest.approx(statistics.mean(values))
        briers = [(1 - v) / 2 for v in values]
        assert cell(table, method, "median Brier") == pytest.approx(statistics.median(briers))
        assert cell(table, method, "mean Brier") == pytest.approx(statistics.mean(briers))
        aurcs = [v / 3 for v in values]
        assert cell(table, method, "median AURC") == pytest.approx(statistics.median(aurcs))
        assert cell(table, method, "mean AURC") == pytest.approx(statistics.mean(aurcs))


def test_the_papers_figures_stand_in_their_places(tmp_path: Path) -> None:
    results = load(make_study(tmp_path / "s", uneven, exact=EXACT))
    table = overall(results)
    assert cell(table, "acc-t", "median ECE (paper)") == 0.0836
    assert cell(table, "histogram-binning", "mean ECE (paper)") == 0.1181
    assert cell(table, "one-source-ece", "mean ECE (paper)") == 0.1359
    exact = without_privacy(results)
    assert cell(exact, "motion_blur", "ece-t (paper)") == 0.0427
    assert cell(exact, "clean", "base (paper)") == 0.0251
    assert cell(exact, "fog", "acc-t") == EXACT["acc-t"]
    assert cell(exact, "fog", "acc-t Brier") == 0.15
    assert cell(exact, "fog", "acc-t AURC") == 0.05
    accuracy = all_tables(results)[-1]
    assert cell(accuracy, "brightness", "accuracy (paper)") == 0.929
    assert cell(accuracy, "brightness", "difference") == pytest.approx(0.75 - 0.929)


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("CIFAR-10-C", "CIFAR-10"),
        ("cifar10c_wrn28x10_severity5", "CIFAR-10"),
        ("Cifar_100", "CIFAR-100"),
        ("CIFAR-100-C", "CIFAR-100"),
        ("imagenet-c", "ImageNet"),
        ("Tiny-ImageNet-C", None),
        ("tinyimagenetc", None),
        ("CIFAR-10.1", None),
        ("ImageNet-V2", None),
        ("cifar10c_severity3", "CIFAR-10"),
        ("hospital", None),
    ],
)
def test_a_data_set_is_known_by_any_spelling_and_no_other_is_taken_for_it(
    dataset: str, name: str | None
) -> None:
    found = reported(dataset)
    assert (found.name if found else None) == name


def test_the_papers_figures_are_whole() -> None:
    for name in ("cifar10", "cifar100", "imagenet"):
        found = reported(name)
        assert found is not None
        assert set(found.under_privacy) == set(METHODS)
        assert len(found.without_privacy) == len(found.accuracy) == 16
    hundred = reported("cifar100")
    assert hundred is not None
    assert hundred.without_privacy["impulse_noise"]["acc-t"] == 0.0061
    imagenet = reported("imagenet")
    assert imagenet is not None
    assert imagenet.under_privacy[ACC_T] == {"median": 0.0289, "mean": 0.0325}


def test_a_data_set_the_paper_does_not_have_gets_no_column_of_the_papers(tmp_path: Path) -> None:
    results = load(make_study(tmp_path / "s", uneven, exact=EXACT, dataset="Tiny-ImageNet-C"))
    for table in all_tables(results):
        assert not any("paper" in heading for heading in table.header)


def test_a_new_method_is_in_every_table_after_the_papers(tmp_path: Path) -> None:
    names = [*map(str, METHODS), "brand_new"]
    results = load(make_study(tmp_path / "s", uneven, [names[-1], *names[:-1]]))
    table, ece, brier, aurc = all_tables(results)
    assert [row[0] for row in table.rows] == names
    assert cell(table, "brand_new", "median ECE (paper)") is None
    assert ece.header == brier.header == aurc.header == ("shift", *names)
    [fog] = [row for row in aurc.rows if row[0] == "fog"]
    values = [uneven("fog", "brand_new", x) / 3 for x in SETTINGS]
    assert fog[-1] == pytest.approx(statistics.median(values))


def test_a_study_of_clean_alone_has_no_table_over_perturbations(tmp_path: Path) -> None:
    results = load(make_study(tmp_path / "s", uneven, shifts=["clean"], exact=EXACT))
    assert [t.name for t in all_tables(results)] == [
        "ece-by-shift",
        "brier-by-shift",
        "aurc-by-shift",
        "without-privacy",
        "accuracy",
    ]


def test_the_best_is_bold_in_markdown_and_latex_and_plain_in_csv(tmp_path: Path) -> None:
    table = overall(load(make_study(tmp_path / "s", as_the_paper_says)))
    best = f"{cell(table, 'acc-t', 'median ECE'):.4f}"
    assert f"| **{best}**† |" in to_markdown(table)
    assert rf"\textbf{{{best}}}\rlap{{$^\dagger$}} " in to_latex(table)
    assert not {"*", "†"} & set(to_csv(table))


def test_the_best_of_the_papers_six_is_marked_beside_the_best_of_all(tmp_path: Path) -> None:
    def ece(shift: str, method: str, setting: Setting) -> float:
        return {"newer": 0.01, "acc-t": 0.05, "nll-t": 0.06}.get(method, 0.2)

    table = overall(load(make_study(tmp_path / "s", ece, [*METHODS, "newer"])))
    names = [row[0] for row in table.rows]
    median = table.header.index("median ECE")
    assert [r for r, c in table.best if c == median] == [names.index("newer")]
    assert [r for r, c in table.marked if c == median] == [names.index("acc-t")]
    text = to_markdown(table)
    assert "| newer | **0.0100** |" in text
    assert "| acc-t | 0.0500† |" in text
    assert "Bold: the best method here; †: the best of the paper's six that are here." in text


def test_formats_are_well_formed_whatever_the_names(tmp_path: Path) -> None:
    strange = "my_method 50% & a|b {#1}"
    folder = make_study(tmp_path / "s", uneven, [*METHODS, strange], exact=EXACT)
    for table in all_tables(load(folder)):
        width = len(table.header)
        rows = list(csv.reader(io.StringIO(to_csv(table))))
        assert len(rows) == len(table.rows) + 1
        assert {len(row) for row in rows} == {width}
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {width + 1}
        for latex in parts(table):
            columns = re.findall(r"\\begin{tabular}{([lr]+)}", latex)[0]
            head, body = latex.split(r"\toprule")[1].split(r"\bottomrule")[0].split(r"\midrule")
            for line in [*head.strip().splitlines(), *body.strip().splitlines()]:
                if line.startswith(r"\cmidrule"):
                    continue
                assert line.endswith(r" \\")
                more = sum(int(n) - 1 for n in re.findall(r"\\multicolumn{(\d+)}", line))
                assert len(re.findall(r"(?<!\\)&", line)) + more == len(columns) - 1
        latex = to_latex(table)
        assert not re.search(r"(?<!\\)[_#%]", latex)
        unescaped = re.sub(r"\\[{}]", "", latex)
        assert unescaped.count("{") == unescaped.count("}")
        assert latex.count(r"\begin{") == latex.count(r"\end{")
    assert r"my\_method 50\% \& a|b \{\#1\}" in to_latex(overall(load(folder)))


def parts(table: Table) -> list[str]:
    """A table in LaTeX, which may come in several parts."""
    return re.findall(r"\\begin{tabular}.*?\\end{tabular}\n", to_latex(table), re.DOTALL)


def columns_of(latex: str) -> list[list[str]]:
    """What is printed in each column, but for names above several."""
    head, body = latex.split(r"\toprule")[1].split(r"\bottomrule")[0].split(r"\midrule")
    lines = [x for x in [*head.splitlines(), *body.splitlines()] if x.endswith(r" \\")]
    lines = [x.removesuffix(r" \\") for x in lines if "multicolumn" not in x]
    lines = [x.replace(r"\rlap{$^\dagger$}", "") for x in lines]  # takes no room
    lines = [re.sub(r"\\textbf{(.*?)}", r"\1", x) for x in lines]
    lines = [re.sub(r"\$\\\w+\$", "x", x).replace("\\", "") for x in lines]
    return [list(column) for column in zip(*(x.split(" & ") for x in lines), strict=True)]


def test_no_table_in_latex_is_wider_than_a_page(tmp_path: Path) -> None:
    own = ["one-source-nll", "one-hot-binning", "sketch", "sketch(public=2000)"]
    small = make_study(tmp_path / "s", uneven, [*METHODS, *own], exact=EXACT)
    options = make_study(
        tmp_path / "f", factors_as_the_paper_says, VARIANTS, settings=FACTOR_SETTINGS, grid="factors"
    )  # fmt: skip
    for table in [*all_tables(load(small)), *all_tables(load(options))]:
        for latex in parts(table):
            columns = columns_of(latex)
            assert len(columns) <= 10
            # At 8 pt a character is about 4 pt, with 6 pt between columns; a page has 345 pt.
            assert sum(4 * max(map(len, column)) + 6 for column in columns) <= 350
            assert "resizebox" not in latex


def test_a_table_in_latex_is_no_higher_than_a_page() -> None:
    header = ("name", *(f"figure {i}" for i in range(20)))
    table = Table("t", "T", "C.", header, tuple((f"row {r}", *[0.5] * 20) for r in range(30)))
    floats = re.findall(r"\\begin{table}.*?\\end{table}", to_latex(table), re.DOTALL)
    assert len(floats) > 1
    assert len({re.findall(r"\\label{(.*)}", text)[0] for text in floats}) == len(floats)
    for i, text in enumerate(floats, start=1):
        assert text.count("\\\\\n") <= 50  # lines of 9.5 pt; a page has 550
        assert f"({i} of {len(floats)})" in text


def test_a_group_wider_than_a_page_is_broken_up() -> None:
    header = ("name", *(f"wide {i}" for i in range(20)))
    table = Table("t", "T", "C.", header, (("a", *[0.5] * 20),), groups=(("wide", 20),))
    assert len(parts(table)) > 1
    assert [h for latex in parts(table) for [h, *_] in columns_of(latex)[1:]] == [
        str(i) for i in range(20)
    ]


def test_what_is_about_one_measure_stays_together_in_latex(tmp_path: Path) -> None:
    table = without_privacy(load(make_study(tmp_path / "s", uneven, exact=EXACT)))
    assert len(table.header) == 17
    first, second = parts(table)
    assert r"\multicolumn{8}{c}{ECE}" in first
    assert r"\multicolumn{4}{c}{Brier} & \multicolumn{4}{c}{AURC}" in second
    for latex in (first, second):
        assert [cell.strip() for cell in columns_of(latex)[0]][-4:] == [
            "motion_blur", "fog", "mean of these 3", "clean",
        ]  # fmt: skip


def test_several_tables_in_csv_are_told_apart(tmp_path: Path) -> None:
    tables = all_tables(load(make_study(tmp_path / "s", uneven)))
    assert render(tables, "csv").count("# ") == 4
    assert not render(tables[:1], "csv").startswith("#")
    with pytest.raises(InputError, match="format must be one of markdown, csv, latex, not 'docx'"):
        render(tables, "docx")


def test_figures_have_four_digits(tmp_path: Path) -> None:
    table = overall(load(make_study(tmp_path / "s", uneven)))
    for text in to_csv(table).splitlines()[1:]:
        assert all(re.fullmatch(r"\d\.\d{4}", figure) for figure in text.split(",")[1:])


# --- several studies in one table --------------------------------------------------------


def test_several_data_sets_stand_in_one_table(tmp_path: Path) -> None:
    def other(shift: str, method: str, setting: Setting) -> float:
        return uneven(shift, method, setting) / 2

    hundred = {"dataset": "CIFAR-100-C", "archive": {"classes": 100}}
    own = {"dataset": "Flowers", "shifts": ["rain", "clean"]}
    studies = [
        load(make_study(tmp_path / "a", uneven, [*METHODS, "newer"], exact=EXACT)),
        load(make_study(tmp_path / "b", other, exact=EXACT, **hundred)),
        load(make_study(tmp_path / "c", as_the_paper_says, exact=EXACT, **own)),
    ]
    table, briers, accuracy = together(studies)
    assert [row[0] for row in table.rows] == [*map(str, METHODS), "newer"]
    assert table.header == (
        "method",
        *("CIFAR-10-C median", "CIFAR-10-C mean"),
        *("CIFAR-10-C median (paper)", "CIFAR-10-C mean (paper)"),
        *("CIFAR-100-C median", "CIFAR-100-C mean"),
        *("CIFAR-100-C median (paper)", "CIFAR-100-C mean (paper)"),
        *("Flowers median", "Flowers mean"),
    )
    for study in studies:
        alone = overall(study)
        for method in map(str, METHODS):
            for what in ("median", "mean"):
                ours = cell(table, method, f"{study.dataset} {what}")
                assert ours == cell(alone, method, f"{what} ECE")
                brier = cell(briers, method, f"{study.dataset} {what} Brier")
                assert brier == cell(alone, method, f"{what} Brier")
    assert cell(table, "acc-t", "CIFAR-10-C median (paper)") == 0.0836
    assert cell(table, "acc-t", "CIFAR-100-C mean (paper)") == 0.0973
    assert cell(table, "newer", "CIFAR-100-C mean") is None
    assert "Flowers: The paper has no figures for Flowers." in table.caption
    assert cell(accuracy, "fog", "CIFAR-100-C accuracy (paper)") == 0.4808
    assert cell(accuracy, "fog", "Flowers accuracy") is None
    assert cell(accuracy, "rain", "Flowers accuracy") == 0.75
    assert accuracy.rows[-1][0] == "clean"
    mean = table.header.index("CIFAR-10-C mean")
    assert len({c for _, c in table.best}) == len({c for _, c in table.marked}) == 10
    newer = len(METHODS)
    assert not any(r == newer for r, _ in table.marked)
    assert min(row[mean] for row in table.rows[:newer]) in [
        table.rows[r][mean] for r, c in table.marked if c == mean
    ]


def test_one_data_set_at_several_severities_goes_by_its_severity(tmp_path: Path) -> None:
    folders = [
        make_study(tmp_path / str(severity), uneven, methods, severity=severity)
        for severity, methods in ((3, ["newer", "acc-t"]), (5, METHODS))
    ]
    [table, _] = together([load(folder) for folder in folders])
    assert [row[0] for row in table.rows] == [*map(str, METHODS), "newer"]
    assert table.header[1] == "CIFAR-10-C, severity 3 median"
    assert not any("severity 3" in h and "(paper)" in h for h in table.header)
    assert "CIFAR-10-C, severity 5 mean (paper)" in table.header


def test_studies_that_cannot_stand_in_one_table_are_told_in_one_sentence(tmp_path: Path) -> None:
    one = load(make_study(tmp_path / "a", uneven))
    with pytest.raises(InputError, match="two studies are of CIFAR-10-C, severity 5; a table of"):
        together([one, one])
    clean = load(make_study(tmp_path / "b", uneven, shifts=["clean"], dataset="Flowers"))
    with pytest.raises(InputError, match="study of Flowers, severity 5 has no perturbation"):
        together([one, clean])
    options = make_study(
        tmp_path / "f", factors_as_the_paper_says, VARIANTS, settings=FACTOR_SETTINGS,
        grid="factors", dataset="Flowers",
    )  # fmt: skip
    with pytest.raises(InputError, match="study of Flowers, severity 5 varies factors"):
        together([one, load(options)])


# --- factors -----------------------------------------------------------------------------


def test_a_study_of_factors_has_one_table_for_each_factor(tmp_path: Path) -> None:
    folder = make_study(
        tmp_path / "s",
        factors_as_the_paper_says,
        VARIANTS,
        settings=FACTOR_SETTINGS,
        grid="factors",
    )
    tables = {t.name: t for t in all_tables(load(folder))}
    assert set(tables) == {
        f"factor-{f}" for f in ("iterations", "bins", "clip", "search", "data", "epsilon")
    }
    iterations = tables["factor-iterations"]
    assert "ECE, no noise" in iterations.header
    assert "Brier, ε = 0.2" in iterations.header
    assert "AURC, ε = 0.2" in iterations.header
    [row] = [r for r in iterations.rows if r[:2] == ("acc-t", "10")]
    expected = [
        factors_as_the_paper_says(s, "acc-t(iterations=10)", FACTOR_SETTINGS[3])
        for s in SHIFTS
        if s != "clean"
    ]
    assert row[iterations.header.index("ECE, ε = 1")] == pytest.approx(statistics.mean(expected))
    # Along the sweeps each method has the variant with its usual options, once.
    assert [r[0] for r in tables["factor-data"].rows] == [
        "uncalibrated",
        "histogram-binning",
        "ece-t",
        "nll-t",
        "acc-t",
    ]


# --- folders -----------------------------------------------------------------------------


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(f"there is no folder {tmp_path / 'none'}")):
        load(tmp_path / "none")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path} holds no study")):
        load(tmp_path)


def test_an_unfinished_study_says_how_to_go_on(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", uneven)
    (folder / "results.parquet").unlink()
    with pytest.raises(InputError, match=rf"{re.escape(str(folder))} is not finished"):
        load(folder)


@pytest.mark.parametrize("name", ["study.json", "results.parquet", "exact.parquet"])
def test_a_file_cut_short_is_named(tmp_path: Path, name: str) -> None:
    folder = make_study(tmp_path / "s", uneven, exact=EXACT)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=re.escape(str(folder / name))):
        load(folder)


def test_rows_and_columns_that_are_missing_are_noticed(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", uneven, exact=EXACT)
    path = folder / "results.parquet"
    whole = pl.read_parquet(path)
    whole.head(10).write_parquet(path)
    with pytest.raises(InputError, match="has 10 of 144 rows"):
        load(folder)
    whole.drop("brier_mean").write_parquet(path)
    with pytest.raises(InputError, match="no column brier_mean"):
        load(folder)
    whole.write_parquet(path)
    exact = folder / "exact.parquet"
    pl.read_parquet(exact).head(3).write_parquet(exact)
    with pytest.raises(InputError, match=r"exact\.parquet lacks some shifts"):
        load(folder)


def test_another_version_is_refused(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", uneven)
    config = json.loads((folder / "study.json").read_text())
    del config["rows"]  # which another version may not have had
    (folder / "study.json").write_text(json.dumps({**config, "version": 99}))
    with pytest.raises(InputError, match=r"study\.json is of another version"):
        load(folder)
