"""The report on made-up results: what is there, what is missing, what failed."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.paper import settings
from benchmarks.paper.experiments import Key, settings_digest
from benchmarks.paper.report import NoResultsError, write_report, write_reports
from benchmarks.paper.results import Results, cell, keep, paper_figures, show
from benchmarks.paper.tables import Table, all_tables


def result(experiment: str, method: str, requests: int, seed: int, gap: float = 1.0, **others: Any) -> dict[str, Any]:
    exact = method == "neverseen"
    made = {
        "experiment": experiment,
        "dataset": "cifar100",
        "method": method,
        "requests": requests,
        "seed": seed,
        "timed": exact,
        "setting": "full",
        "commit": "0123456789abcdef",
        "hardware": "NVIDIA H200",
        "torch": "2.9",
        "times": {
            "features": 0.5 if exact else None,
            "update": gap * 10,
            "per_request": [1.0] * requests,
            "alone": exact,
        },
        "requests_done": requests,
        "peak_memory": 2**30,
        "accuracy": {"retained": 80.0, "forgotten": 70.0, "test": 60.0},
        "reference": {"retained": 81.0, "forgotten": 69.0, "test": 61.0},
        "gap": {"retained": gap, "forgotten": gap, "test": gap},
        "parameter_gap": gap,
        "mia": {
            "confidence": 0.5,
            "gap": gap / 100,
            "lira": 0.6 if seed == 0 else None,
            "lira_tpr_at_1_percent": 0.05 if seed == 0 else None,
        },
        "digest": {"model": "a", "retrained": "a", "equal": True} if exact else None,
        "reads_retained": not exact,
        "notes": [],
        "after_each_request": [
            {"requests": k, "retained": 80.0, "test": 60.0, "seconds": float(k)} for k in range(1, requests + 1)
        ],
        "failed": None,
    }
    return made | others


def failed(experiment: str, method: str, requests: int, seed: int) -> dict[str, Any]:
    key = {"experiment": experiment, "dataset": "cifar100", "method": method, "requests": requests, "seed": seed}
    return key | {"timed": False, "setting": "full", "failed": "OutOfMemoryError: CUDA | out of memory"}


MADE_UP = [
    *(result("table1", "finetune", 5, seed, gap=1.0 + seed) for seed in range(3)),
    result("table1", "scrub", 5, 0, gap=0.25),
    failed("table1", "woodfisher", 5, 0),
    result("table1", "neggrad", 5, 0, parameter_gap=None),
    *(result("table1", "neverseen", 5, seed, gap=0.0) for seed in range(3)),
    result("table1", "acu_float64", 5, 0, gap=0.0, parameter_gap=3e-12),
    result("table1", "retrain", 1, 0, gap=0.5),
    result("table2", "finetune", 5, 0),
    result("time", "retrain", 1, 0, times={"features": None, "update": 20.0, "per_request": [20.0], "alone": True}),
    result("time", "scrub", 5, 0, times={"features": None, "update": 7.0, "per_request": [1.4] * 5, "alone": True}),
    result("stress_few", "acu_float32", 29, 0, notes=["no model after step 3 | of the recursion"]),
    failed("stress_few", "acu_float64", 29, 0),
    result("stress_few", "neverseen", 29, 0, gap=0.0),
]


def tables(results: list[dict[str, Any]]) -> dict[str, Table]:
    return {table.name: table for table in all_tables(Results(results))}


def by_method(table: Table) -> dict[str, list[str]]:
    place = table.heading.index("method")
    return {row[place]: row for row in table.rows}


def test_table_1_has_ours_beside_the_papers() -> None:
    table = tables(MADE_UP)["table1-cifar100-5"]
    rows = by_method(table)
    assert table.heading[:4] == ["method", "reads retained", "Δ parameters", "paper"]
    assert rows["Finetune"][1:6] == ["yes", "2.00 ± 1.00", "58.92 ± 0.03", "2.00 ± 1.00", "12.03 ± 0.23"]
    assert rows["SCRUB"][2:4] == ["0.25", "53.72 ± 0.00"]
    assert rows["WoodFisher"][1:4] == ["–", "failed", "54.00 ± 0.00"]
    assert rows["NegGrad"][2] == "not finite"
    assert rows["ACU, float64"][2:6] == ["3e-12", "0.00 ± 0.00", "0.00", "0.00 ± 0.00"]
    assert rows["Retrain, other draws"][2:4] == ["0.50", "–"]
    assert rows["Finetune"][-3:] == ["0.600", "5.0", "–"]


def test_neverseen_shows_the_digest_check_and_no_rounded_zero() -> None:
    row = by_method(tables(MADE_UP)["table1-cifar100-5"])["neverseen"]
    assert row[1] == "no"
    assert row[2:12:2] == ["= retrained"] * 5
    assert row[-1] == "equal in 3 of 3"
    wrong = [result("table1", "neverseen", 5, 0, gap=0.0)]
    wrong += [result("table1", "neverseen", 5, 1, gap=0.0, digest={"model": "a", "retrained": "b", "equal": False})]
    row = by_method(tables(wrong)["table1-cifar100-5"])["neverseen"]
    assert row[2] == "0.00 ± 0.00"
    assert row[-1] == "equal in 1 of 2"


def test_table_2_has_the_analytic_rows_of_table_1() -> None:
    rows = by_method(tables(MADE_UP)["table2-cifar100-5"])
    assert list(rows) == ["Finetune", "ACU, float64", "neverseen"]
    assert rows["Finetune"][3] == "28.51"


def test_times_are_of_runs_that_were_alone() -> None:
    made_up = [one for one in MADE_UP if one["method"] != "neverseen"]
    times = {"features": 0.5, "update": 0.7, "per_request": [0.14] * 5, "alone": True}
    made_up.append(result("time", "neverseen", 5, 0, times=times))
    some = {"features": None, "update": 3.0, "per_request": [1.5] * 2, "alone": True}
    made_up.append(result("time", "l1_sparsity", 5, 0, times=some, requests_done=2))
    rows = by_method(tables(made_up)["times-cifar100"])
    assert rows["SCRUB"][2:4] == ["7.00", "10.0"]
    assert rows["Retrain, 5 × one"][2] == "100.00"
    assert rows["L1-Sparsity"][2:5] == ["≈ 7.5, 2 timed", "10.7", "1.500"]
    assert rows["neverseen"][2:6] == ["0.70", "1.0", "0.140", "0.50"]
    assert "Finetune" not in rows


def test_results_of_earlier_settings_are_named(tmp_path: Path) -> None:
    now = settings_digest(Key("table1", "cifar100", "finetune", 5, 0, False), settings.read("full"))
    made_up = [
        result("table1", "finetune", 5, 0, settings_digest=now),
        result("table1", "scrub", 5, 0, settings_digest="other"),
        result("table1", "random_label", 5, 0),
    ]
    write_report(Results(made_up), tmp_path)
    assert "to be run again" in (told := (tmp_path / "report.md").read_text())
    assert "- table1: RandomLabel; SCRUB\n" in told


def test_other_tables_say_what_happened() -> None:
    rows = by_method(tables(MADE_UP)["stress_few-cifar100-29"])
    assert rows["neverseen"][3] == "70.00"
    assert rows["neverseen"][5:9] == ["= retrained", "= retrained", "= retrained", "equal in 1 of 1"]
    assert rows["ACU, float32"][-1] == "no model after step 3 / of the recursion"
    assert rows["ACU, float64"][-1].startswith("failed: OutOfMemoryError")


def test_everything_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = write_report(Results(MADE_UP), tmp_path / "out")
    assert all(path.is_file() and path.stat().st_size for path in files)
    assert {path.suffix for path in files} == {".md", ".tex", ".csv", ".svg"}
    text = (tmp_path / "out" / "report.md").read_text()
    assert "## Runs that failed" in text
    assert "The digest was that of the retrained model in 4 of 4 runs of neverseen." in text
    assert "- CIFAR-100: neverseen 80.00 ± 0.00 retained, 60.00 ± 0.00 test; the paper's ACU about 84 and 60.0." in text
    assert "- table1-cifar100-woodfisher-5-0: OutOfMemoryError" in text
    assert "NVIDIA H200, torch 2.9, commit 0123456789ab" in text
    assert "(stress_few-cifar100-29.svg)" in text
    assert "(dynamics-cifar100-5.svg)" in text
    latex = (tmp_path / "out" / "tables.tex").read_text()
    assert r"2.00 $\pm$ 1.00" in latex
    assert "±" not in latex
    rows = list(csv.reader(io.StringIO((tmp_path / "out" / "tables.csv").read_text())))
    assert len({len(row) for row in rows if row[0] == "table1-cifar100-5"}) == 1
    again = write_report(Results(MADE_UP), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files]


def test_without_matplotlib_there_are_tables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files = write_report(Results(MADE_UP), tmp_path)
    assert {path.suffix for path in files} == {".md", ".tex", ".csv"}
    assert "no figures: they need matplotlib" in capsys.readouterr().out


def test_each_setting_has_its_own_report(tmp_path: Path) -> None:
    for one in (MADE_UP[4], MADE_UP[12] | {"setting": "cpu"}):
        keep(tmp_path / f"{one['setting']}.jsonl", one)
    written = {path.relative_to(tmp_path).as_posix() for path in write_reports(tmp_path) if path.suffix == ".md"}
    assert written == {"cpu/report.md", "full/report.md"}
    (tmp_path / "none").mkdir()
    with pytest.raises(NoResultsError, match="holds no results: python -m benchmarks.paper run"):
        write_reports(tmp_path / "none")


def test_numbers_are_shown_so_that_small_is_not_zero() -> None:
    assert (show(0.0, 2), show(0.004, 2), show(3e-12, 2), show(12345.678, 1)) == ("0.00", "4e-03", "3e-12", "12,345.7")
    assert cell([], lambda run: 1.0) == "–"
    mixed = [result("table1", "scrub", 5, 0), result("table1", "scrub", 5, 1, parameter_gap=None)]
    assert cell(mixed, lambda run: run["parameter_gap"]) == "not finite in 1 of 2"


def test_the_papers_figures_are_whole() -> None:
    figures = paper_figures()
    for table in ("table1", "table2"):
        for dataset in ("cifar10", "cifar100"):
            methods = figures[table][dataset]
            assert set(methods) == {
                "finetune",
                "l1_sparsity",
                "scrub",
                "woodfisher",
                "random_label",
                "neggrad_plus",
                "neggrad",
                "acu",
            }
            for columns in methods.values():
                assert set(columns) == {"parameters", "retained", "forgotten", "test", "mia"}
                assert all(set(values) == {"5", "25"} for values in columns.values())
            assert all(value == [0.0] * len(value) for c in methods["acu"].values() for value in c.values())
    assert figures["table1"]["cifar10"]["woodfisher"]["retained"]["25"] == [89.58, 0.07]
    assert figures["table2"]["cifar100"]["woodfisher"]["retained"]["25"] == [83.43]
    assert figures["times"]["acu"] == {"25": 12.68, "50": 18.16}
