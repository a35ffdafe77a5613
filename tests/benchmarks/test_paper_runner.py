"""Runs of the paper's evaluation: whole, resumable, within a deadline, and honest about failure."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.paper import runner, settings  # noqa: E402
from benchmarks.paper.__main__ import main  # noqa: E402
from benchmarks.paper.artefacts import Artefacts  # noqa: E402
from benchmarks.paper.experiments import Key  # noqa: E402
from benchmarks.paper.results import Result, keep, read_runs  # noqa: E402
from benchmarks.paper.settings import Setting, SettingError  # noqa: E402
from benchmarks.paper.training import augmented, generator_on  # noqa: E402

ROOT = Path(__file__).parents[2]

TINY = f"""
based_on = "{ROOT}/tests/benchmarks/paper_small.toml"
extra_methods = ["paper_probes:Fails", "paper_probes:Dies", "paper_probes:Blind", "paper_probes:Sighted", "paper_probes:Hungry"]

[sizes]
network_references = 0

[experiments.table1]
methods = ["finetune", "neggrad", "neverseen"]

[experiments.table2]
methods = ["retrain", "scrub", "fails", "dies", "blind", "sighted", "hungry"]
"""

PROBES = """
import os
from dataclasses import dataclass
import torch
from benchmarks.paper.methods.descent import GradientMethod

class Probe(GradientMethod):
    reads_retained = False
    @dataclass(frozen=True)
    class Settings:
        pass

class Fails(Probe):
    name = "fails"
    def update(self, request):
        raise ArithmeticError("the matrix is singular")

class Dies(Probe):
    name = "dies"
    def update(self, request):
        os._exit(3)

class Blind(Probe):
    name = "blind"
    def update(self, request):
        self.notes.append(f"retained: {request.retained}")

class Hungry(Probe):
    name = "hungry"
    def update(self, request):
        threads = os.environ.get("OPENBLAS_NUM_THREADS", "as many as there are cores")
        if threads == "3":
            raise torch.OutOfMemoryError("others take too much")
        self.notes.append(threads)

class Sighted(Probe):
    name = "sighted"
    reads_retained = True
    def update(self, request):
        self.notes.append(f"retained: {len(request.retained.labels)}, forgotten: {len(request.forgotten.labels)}")
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are faster so, and far faster on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the setting, the probes, and the artefacts that tests share."""
    place = tmp_path_factory.mktemp("paper")
    (place / "tiny.toml").write_text(TINY)
    (place / "paper_probes.py").write_text(PROBES)
    return place


@pytest.fixture
def setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.syspath_prepend(str(folder))
    return settings.read(str(folder / "tiny.toml"))


def options(folder: Path, out: Path, only: str, workers: int = 0, **others: Any) -> runner.Options:
    chosen = runner.parse_only([only])
    return runner.Options(out=out, work=folder / "work", data=folder, workers=workers, only=chosen, **others)


def read(out: Path, setting: str = "tiny") -> dict[str, Result]:
    """Return results by experiment, method and number of requests."""
    runs = read_runs(out / f"{setting}.jsonl")
    return {f"{run['experiment']}-{run['method']}-{run['requests']}": run for run in runs}


# -- results ---------------------------------------------------------------------------------------


def test_results_have_all_that_the_report_needs(folder: Path, setting: Setting, tmp_path: Path) -> None:
    assert runner.run(setting, options(folder, tmp_path, "experiment=table1,alternating,stress_few")) == 0
    network, exact = read(tmp_path)["table1-finetune-2"], None
    assert network["failed"] is None
    assert network["reads_retained"] is True
    assert network["samples"] == {"retained": 40, "forgotten": 20, "test": 20}
    assert network["parameter_gap"] > 0
    assert network["digest"] is None
    assert len(network["times"]["per_request"]) == 2
    assert network["times"]["alone"] is False
    assert network["times"]["update"] == pytest.approx(sum(network["times"]["per_request"]), abs=1e-3)
    assert [point["requests"] for point in network["after_each_request"]] == [1, 2]
    assert set(network["mia"]) == {"confidence", "gap", "lira", "lira_tpr_at_1_percent"}
    for name in ("table1-neverseen-2", "alternating-neverseen-4"):
        exact = read(tmp_path)[name]
        assert exact["digest"]["equal"] is True
        assert exact["digest"]["model"] == exact["digest"]["retrained"]
        assert exact["parameter_gap"] == 0
        assert exact["gap"] == {"retained": 0, "forgotten": 0, "test": 0}
        assert exact["reads_retained"] is False
        assert exact["times"]["alone"] is False
    assert exact is not None
    assert exact["digest"] == read(tmp_path)["table1-neverseen-2"]["digest"]
    few = read(tmp_path)["stress_few-neverseen-5"]
    assert few["samples"]["retained"] == 20 < setting.analytic.codes
    assert few["digest"]["equal"] is True
    lines = (tmp_path / "tiny.jsonl").read_text().splitlines()
    assert max(map(len, lines)) < 10_000
    assert lines == sorted(lines)  # by experiment, data set, method


def test_class_requests_leave_no_sample_of_the_class(folder: Path, setting: Setting, tmp_path: Path) -> None:
    only = "experiment=classes,class_sums,method=neverseen,acu_float64"
    assert runner.run(setting, options(folder, tmp_path, only)) == 0
    by_samples = read(tmp_path)["classes-neverseen-3"]
    by_sums = read(tmp_path)["class_sums-neverseen-3"]
    assert by_samples["digest"] == by_sums["digest"]
    assert by_samples["digest"]["equal"] is True
    assert by_samples["samples"]["test"] == 14  # of the seven classes left
    assert by_samples["accuracy"]["forgotten"] == 0
    assert read(tmp_path)["class_sums-acu_float64-3"]["parameter_gap"] < 1e-6


def test_retained_samples_go_only_to_methods_that_declare_it(folder: Path, setting: Setting, tmp_path: Path) -> None:
    runner.run(setting, options(folder, tmp_path, "experiment=table2,method=blind,sighted"))
    assert read(tmp_path)["table2-blind-2"]["notes"] == ["retained: None"] * 2
    sighted = read(tmp_path)["table2-sighted-2"]
    assert sighted["notes"] == ["retained: 50, forgotten: 10", "retained: 40, forgotten: 10"]
    assert sighted["gap"] == read(tmp_path)["table2-blind-2"]["gap"]  # neither moved anything


def test_augmentation_shifts_and_mirrors() -> None:
    images = torch.arange(32 * 32 * 3, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(1, 32, 32, 3)
    padded = torch.zeros((40, 40, 3), dtype=torch.uint8)
    padded[4:36, 4:36] = images[0]
    windows = [padded[top : top + 32, left : left + 32] for top in range(9) for left in range(9)]
    allowed = {window.numpy().tobytes() for window in windows} | {w.flip(1).numpy().tobytes() for w in windows}
    changed = augmented(images.repeat(200, 1, 1, 1), generator_on(torch.device("cpu"), 0))
    found = {np.ascontiguousarray(image.numpy()).tobytes() for image in changed}
    assert found <= allowed
    assert len(found) > 50
    again = augmented(images.repeat(200, 1, 1, 1), generator_on(torch.device("cpu"), 0))
    assert torch.equal(changed, again)


# -- stopping and going on -------------------------------------------------------------------------


def test_a_killed_run_goes_on_with_what_is_missing(folder: Path, setting: Setting, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.paper", "run", str(folder / "tiny.toml"), "--out", str(tmp_path)]
    command += ["--work", str(folder / "work"), "--only", "experiment=table2,method=retrain,scrub,blind"]
    command += ["--workers", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), str(folder)])}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert ": ok" in process.stdout.readline()  # one is done
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    first = read(tmp_path)
    assert 1 <= len(first) <= 3
    chosen = options(folder, tmp_path, "experiment=table2,method=retrain,scrub,blind")
    assert len(runner.missing(setting, chosen)) == 3 - len(first)
    assert runner.run(setting, chosen) == 0
    after = read(tmp_path)
    assert len(after) == 3
    assert {name: after[name] for name in first} == first  # its times and all
    assert runner.run(setting, chosen) == 0
    assert read(tmp_path) == after


def kept(path: Path, *runs: tuple[str, int]) -> list[tuple[str, int]]:
    for method, seed in runs:
        key = Key("table1", "cifar10", method, 5, seed, False)
        keep(path, key._asdict() | {"setting": "full", "failed": None})
    return [(run["method"], run["seed"]) for run in read_runs(path)]


def test_results_are_sorted_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "full.jsonl"
    assert kept(path, ("scrub", 10), ("scrub", 2)) == [("scrub", 2), ("scrub", 10)]
    before = path.read_bytes()
    assert kept(path, ("neggrad", 0), ("scrub", 2)) == [("neggrad", 0), ("scrub", 2), ("scrub", 10)]
    assert path.read_bytes().endswith(before)
    assert [file.name for file in path.parent.iterdir()] == ["full.jsonl"]


def test_what_is_cut_off_while_it_is_written_leaves_the_results_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "full.jsonl"
    kept(path, ("scrub", 0))

    def cut_off(file: Path, text: str) -> int:
        file.write_bytes(text.encode()[:-9])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", cut_off)
        with pytest.raises(KeyboardInterrupt):
            kept(path, ("scrub", 1))
    assert kept(path) == [("scrub", 0)]
    assert kept(path, ("scrub", 2)) == [("scrub", 0), ("scrub", 2)]


def test_no_result_is_lost_where_several_add_theirs(tmp_path: Path) -> None:
    path = tmp_path / "full.jsonl"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda seed: kept(path, ("scrub", seed)), range(40)))
    assert kept(path) == [("scrub", seed) for seed in range(40)]


def test_failures_are_recorded_and_others_go_on(
    folder: Path, setting: Setting, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = options(folder, tmp_path, "experiment=table2,method=fails,dies,blind", workers=1)
    assert runner.run(setting, chosen) == 0
    raised = read(tmp_path)["table2-fails-2"]
    assert raised["failed"] == "ArithmeticError: the matrix is singular"
    assert (raised["experiment"], raised["method"], raised["seed"]) == ("table2", "fails", 0)
    assert read(tmp_path)["table2-dies-2"]["failed"] == "the process ended with code 3"
    assert read(tmp_path)["table2-blind-2"]["failed"] is None
    assert "FAILED: ArithmeticError" in capfd.readouterr().out
    assert {key.method for key in runner.failures(setting, chosen)} == {"fails", "dies"}
    assert runner.missing(setting, chosen) == []
    again = options(folder, tmp_path, "experiment=table2,method=fails,dies,blind", failed=True)
    assert {key.method for key in runner.missing(setting, again)} == {"fails", "dies"}


def test_workers_share_the_cores_and_what_runs_out_of_memory_runs_again_alone(
    folder: Path, setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    chosen = options(folder, tmp_path, "experiment=table2,method=hungry", workers=2)
    assert runner.run(setting, chosen) == 0
    assert "hungry-2-0: out of memory; again at the end, alone" in capfd.readouterr().out
    assert runner.failures(setting, chosen) == []
    assert set(read(tmp_path)["table2-hungry-2"]["notes"]) == {"6"}  # 3 beside others
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_nothing_starts_after_the_deadline(folder: Path, setting: Setting, tmp_path: Path) -> None:
    for workers in (0, 2):
        chosen = options(folder, tmp_path, "experiment=table2,method=blind,scrub", deadline=0.0, workers=workers)
        assert runner.run(setting, chosen) == 2
    stopped = options(folder, tmp_path, "experiment=table2,method=blind,scrub", stop=0.1, workers=1)
    assert runner.run(setting, stopped) == 2
    assert not list(tmp_path.iterdir())


def test_what_took_longest_may_go_first(
    folder: Path, setting: Setting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = options(folder, tmp_path, "experiment=table2,method=scrub,blind,sighted")
    runner.run(setting, chosen)
    seconds = {"blind": 7.0, "scrub": 1.0, "sighted": 9.0}
    told = [run | {"seconds": seconds[run["method"]]} for run in read(tmp_path).values()]
    for longest_first, order in ((True, "sighted blind scrub"), (False, "scrub blind sighted")):
        for run in told:
            keep(tmp_path / "tiny.jsonl", run)
        capsys.readouterr()
        runner.run(setting, replace(chosen, longest_first=longest_first, again=True))
        assert re.findall(r"synthetic10-([a-z]+)-", capsys.readouterr().out) == order.split()


def test_what_would_not_end_in_time_is_left(folder: Path, setting: Setting, tmp_path: Path) -> None:
    chosen = options(folder, tmp_path, "experiment=table2,method=blind,scrub", stop=100.0, workers=1)
    scrub, blind = (Key("table2", "synthetic10", name, 2, 0, False) for name in ("scrub", "blind"))
    pool = runner._Pool(setting, chosen, time.monotonic(), 1)
    pool.todo, pool.seconds = [scrub, blind], [(scrub, 300.0), (blind, 1.0)]
    assert pool._next(scrub) == blind
    pool.seconds = [(scrub, 300.0), (blind, 200.0)]
    assert pool._next(None) is None


def test_the_timing_phase_waits_for_the_shared_one(folder: Path, setting: Setting, tmp_path: Path) -> None:
    chosen = options(folder, tmp_path, "experiment=dynamics,time,method=neverseen,neggrad", phase="shared")
    assert runner.run(setting, chosen) == 0
    assert list(read(tmp_path)) == ["dynamics-neggrad-4"]
    chosen = options(folder, tmp_path, "experiment=dynamics,time,method=neverseen,neggrad", phase="timing")
    assert runner.run(setting, chosen) == 0
    assert len(read(tmp_path)) == 4
    for method in ("neverseen", "neggrad"):  # times are all that such a run is for
        timed = read(tmp_path)[f"time-{method}-2"]
        assert timed["times"]["alone"] is True
        assert "accuracy" not in timed
        assert timed["digest"] is None or timed["digest"]["equal"]


def test_a_result_of_other_settings_is_missing(folder: Path, setting: Setting, tmp_path: Path) -> None:
    chosen = options(folder, tmp_path, "experiment=table1,method=finetune,neggrad")
    assert runner.run(setting, chosen) == 0
    assert runner.missing(setting, chosen) == []
    other = replace(setting, methods={**setting.methods, "finetune": {"epochs": 2}})
    assert [key.method for key in runner.missing(other, chosen)] == ["finetune"]
    other = replace(setting, analytic=replace(setting.analytic, gamma=setting.analytic.gamma + 1))
    assert {key.method for key in runner.missing(other, chosen)} == {"finetune", "neggrad"}


def test_a_few_requests_are_timed_of_a_gradient_method(folder: Path, setting: Setting, tmp_path: Path) -> None:
    time_ = replace(setting.experiments["time"], sample=3, requests=(5,))
    setting = replace(setting, experiments={**setting.experiments, "time": time_})
    chosen = options(folder, tmp_path, "experiment=time,method=neggrad,neverseen,retrain")
    assert runner.run(setting, chosen) == 0
    gradient = read(tmp_path)["time-neggrad-5"]
    assert (gradient["requests_done"], gradient["samples"]["retained"]) == (3, 40)  # the last one is among them
    assert read(tmp_path)["time-neverseen-5"]["requests_done"] == 5
    assert read(tmp_path)["time-retrain-1"]["samples"] == {
        "retained": 50,
        "forgotten": 10,
        "test": 20,
    }


def test_analytic_methods_are_timed_several_times(folder: Path, setting: Setting, tmp_path: Path) -> None:
    once = replace(setting.experiments["time"], requests=(5,))
    often = replace(once, repeats=3)
    chosen = options(folder, tmp_path, "experiment=time,method=neggrad,neverseen")
    for time_ in (once, often):  # a result of another number of repeats is missing
        setting = replace(setting, experiments={**setting.experiments, "time": time_})
        assert len(runner.missing(setting, chosen)) == 2
        assert runner.run(setting, chosen) == 0
    times = read(tmp_path)["time-neverseen-5"]["times"]
    assert len(times["updates"]) == 3
    assert times["update"] == sorted(times["updates"])[1] == pytest.approx(sum(times["per_request"]), abs=1e-3)
    assert read(tmp_path)["time-neggrad-5"]["times"]["updates"] is None
    for repeats in (0, 2):
        experiments = {**setting.experiments, "time": replace(once, repeats=repeats)}
        with pytest.raises(SettingError, match="repeats must be odd"):
            runner.run(replace(setting, experiments=experiments), chosen)


def test_artefacts_of_other_data_are_kept_apart(folder: Path, setting: Setting, tmp_path: Path) -> None:
    places = set()
    for fill in (0, 1):
        made = Artefacts(setting, "synthetic10", 0, folder, tmp_path, "cpu")
        made.dataset.train_images[0, 0, 0] += np.uint8(fill)
        places.add(made.place)
    assert len(places) == 2


def test_estimates_come_from_the_runs_most_alike() -> None:
    scrub, other = Key("table1", "cifar10", "scrub", 5, 0, False), Key("table1", "cifar10", "neggrad", 5, 0, False)
    known = [(scrub, 10.0), (scrub._replace(requests=25), 30.0), (other, 2.0)]
    assert runner.estimate(scrub._replace(seed=1), known) == 10
    assert runner.estimate(scrub._replace(dataset="cifar100", requests=50), known) == 20
    assert runner.estimate(scrub._replace(method="finetune"), known) == 14
    assert runner.estimate(scrub, []) == 0
    timed = scrub._replace(experiment="time")
    assert runner.estimate(timed._replace(method="finetune"), [*known, (timed, 3.0)]) == 3


def test_only_is_read() -> None:
    assert runner.parse_only(["method=scrub,finetune,dataset=cifar10", "seed=0"]) == {
        "method": {"scrub", "finetune"},
        "dataset": {"cifar10"},
        "seed": {"0"},
    }
    with pytest.raises(SettingError, match="--only takes experiment"):
        runner.parse_only(["colour=red"])


# -- the command line and the documentation --------------------------------------------------------


def test_commands_say_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEVERSEEN_DATA", str(tmp_path))
    assert main(["run", "nonsense"]) == 2
    assert "there is no setting 'nonsense'" in capsys.readouterr().err
    assert main(["run", "smoke", "--out", str(tmp_path), "--device", "banana"]) == 2
    assert "--device is 'banana'; there is cpu" in capsys.readouterr().err
    assert main(["run", "smoke", "--out", str(tmp_path), "--workers", "-3"]) == 2
    assert "--workers is -3; 0 for this process alone" in capsys.readouterr().err
    assert main(["data", "check", "cifar100"]) == 2
    assert "no cifar100 found" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no results" in capsys.readouterr().err
    assert main(["run", "smoke", "--out", str(tmp_path), "--list"]) == 0
    assert "time-synthetic10-neverseen-2-0 (alone)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seeds = 3\n", "seeds is 3, where a list of whole numbers is wanted"),
        ('width = "four"\n', "width is 'four', where a whole number is wanted"),
        ("[sizes]\nbase = true\n", "base is True, where a whole number is wanted"),
        ('[base]\nlr = "much"\n', "lr is 'much', where a number is wanted"),
        ("[analytic]\nmirrored = 1\n", "mirrored is 1, where true or false is wanted"),
        ("[methods.scrubb]\nepochs = 1\n", "own has unknown methods: scrubb; known: original"),
        ("[methods.scrub]\nepoch = 1\n", "own: scrub has no setting epoch; it has epochs"),
        ('extra_methods = ["nothing:Here"]\n', "'nothing:Here', MODULE:CLASS, is not there"),
        ('[experiments.time]\nmethods = ["nothing"]\n', "own has unknown methods: nothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_runs(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text('based_on = "smoke"\n' + text)
    assert main(["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "runs"), "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_setting_that_is_based_on_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(f'based_on = "{tmp_path}/own.toml"\n')
    assert main(["run", str(tmp_path / "own.toml"), "--list"]) == 2
    assert "own.toml is based on itself" in capsys.readouterr().err


def test_without_images_no_result_is_made_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEVERSEEN_DATA", str(tmp_path / "nowhere"))
    before = kept(tmp_path / "full.jsonl", ("scrub", 0))
    command = ["run", "full", "--again", "--only", "experiment=stress_few,dataset=cifar10", "--out", str(tmp_path)]
    assert main([*command, "--device", "cpu"]) == 2
    assert "or name another folder with NEVERSEEN_DATA" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full.jsonl"]
    assert kept(tmp_path / "full.jsonl") == before


@pytest.mark.parametrize("text", ['{"setting": "smo', "[]", "{}", ""])
def test_a_line_that_is_not_a_result_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "smoke.jsonl"
    kept(damaged, ("scrub", 0))
    damaged.write_text(damaged.read_text() + text + "\n")
    for command in (["run", "smoke", "--list", "--out"], ["report"]):
        assert main([*command, str(tmp_path)]) == 2
        assert f"{damaged}, line 2, is not a result" in capsys.readouterr().err


def test_only_what_there_is_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for only in ("method=scrubb", "method=", "seed=7", "experiment=table1,table9"):
        assert main(["run", "smoke", "--out", str(tmp_path), "--only", only]) == 2
        assert "smoke has " in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    assert main(["run", "smoke", "--out", str(tmp_path), "--device", "cpu"]) == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from here\n"


def test_gamma_is_validated_on_learned_samples(
    folder: Path, setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["validate", str(folder / "tiny.toml"), "--work", str(folder / "work"), "--data", str(folder)]
    assert main([*command, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert re.fullmatch(r"synthetic10: gamma = 2\*\*12: \d+\.\d\d %  \(the setting's\)", lines[0])


def test_the_walkthrough_in_the_documentation_works(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    walkthrough = text[text.index("## A new method is one file") :]
    code = re.findall(r"```python\n(.*?)```", walkthrough, re.DOTALL)[0]
    toml = re.findall(r"```toml\n(.*?)```", walkthrough, re.DOTALL)[0]
    assert len(code.splitlines()) < 150
    (tmp_path / "noise.py").write_text(code)
    (tmp_path / "noise.toml").write_text(toml.replace('"smoke"', json.dumps(str(folder / "tiny.toml"))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ["--only", "method=noise", "--out", "runs", "--work", str(folder / "work"), "--workers", "0"]
    assert main(["run", "noise.toml", *options]) == 0
    assert set(read(Path("runs"), "noise")) == {"table1-noise-2", "table2-noise-2"}
    result = read(Path("runs"), "noise")["table2-noise-2"]
    assert result["method_settings"] == {"scale": 0.001}
    assert result["parameter_gap"] > 0
    assert main(["report", "runs"]) == 0
    assert "| noise | no |" in Path("runs/noise/report.md").read_text()
    capsys.readouterr()
