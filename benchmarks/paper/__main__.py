"""``python -m benchmarks.paper run SETTING``, ``report``, ``data``. See ``docs/paper.md``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.cifar import CifarError
from benchmarks.paper.results import ResultError
from benchmarks.paper.settings import SettingError, names, read

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "paper"


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.act(options)
    except (CifarError, ResultError, SettingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="The paper's evaluation.")
    verbs = parser.add_subparsers(required=True, metavar="{run,report,data,validate}")
    run = verbs.add_parser("run", help="do the runs of a setting that have no result yet")
    run.add_argument("setting", help=f"{', '.join(names())}, or a .toml file")
    run.add_argument("--out", type=Path, help="folder of the results, SETTING.jsonl (build/paper)")
    run.add_argument("--work", type=Path, help="networks and features, kept for later runs (~/.cache/neverseen/paper)")
    run.add_argument("--data", type=Path, help="the images (NEVERSEEN_DATA, else ~/.cache/neverseen)")
    run.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    run.add_argument(
        "--workers", type=int, help="processes side by side; 0: this one alone (6 on CUDA, else the cores)"
    )
    run.add_argument("--deadline", type=float, metavar="SECONDS", help="start no run after so long")
    run.add_argument("--stop", type=float, metavar="SECONDS", help="end what is going on after so long")
    run.add_argument("--longest-first", action="store_true", help="by the times of earlier results; ends sooner")
    run.add_argument("--phase", choices=("all", "shared", "timing"), default="all", help="timing runs go alone")
    run.add_argument(
        "--only", action="append", default=[], metavar="NAME=VALUE,...", help="such as method=scrub,finetune"
    )
    run.add_argument("--again", action="store_true", help="also what has a result")
    run.add_argument("--failed", action="store_true", help="also what has a result that says it failed")
    run.add_argument("--list", action="store_true", help="say what is missing and do nothing")
    run.set_defaults(act=_run)
    report = verbs.add_parser("report", help="write tables and figures from the results")
    report.add_argument(
        "folder", type=Path, nargs="?", default=RESULTS, help="of the results (those in the repository)"
    )
    report.set_defaults(act=_report)
    data = verbs.add_parser("data", help="find, check and pack the images")
    data.add_argument("verb", choices=("check", "pack"))
    data.add_argument("name", help="cifar10 or cifar100")
    data.add_argument("folder", type=Path, nargs="?", help="pack: where to write NAME-pack")
    data.add_argument("--data", type=Path, help="the images (NEVERSEEN_DATA, else ~/.cache/neverseen)")
    data.set_defaults(act=_data)
    validate = verbs.add_parser("validate", help="score values of gamma on learned samples alone")
    validate.add_argument("setting", help=f"{', '.join(names())}, or a .toml file")
    validate.add_argument("--only", action="append", default=[], metavar="dataset=NAME", help="one data set")
    for name in ("--work", "--data"):
        validate.add_argument(name, type=Path)
    validate.add_argument("--device")
    validate.set_defaults(act=_validate)
    return parser


def _device(given: str | None) -> str:
    import torch

    here = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if given is not None and given not in here:
        raise SettingError(f"--device is {given!r}; there is {' and '.join(here)}")
    return given or here[-1]


def _work_folder(given: Path | None) -> Path:
    return given or Path(os.environ.get("NEVERSEEN_CACHE") or Path.home() / ".cache" / "neverseen") / "paper"


def _validate(options: argparse.Namespace) -> int:
    from benchmarks.paper import runner
    from benchmarks.paper.artefacts import Artefacts
    from benchmarks.paper.data import data_folder
    from benchmarks.paper.experiments import keys
    from benchmarks.paper.validation import validate

    setting, only = read(options.setting), runner.parse_only(options.only)
    wanted = {key.place for key in keys(setting) if key.dataset in only.get("dataset", {key.dataset})}
    for dataset, seed in sorted(place for place in wanted if place[1] == min(seed for _, seed in wanted)):
        work, device = _work_folder(options.work), _device(options.device)
        artefacts = Artefacts(setting, dataset, seed, data_folder(options.data), work, device)
        for power, accuracy in validate(artefacts).items():
            mark = "  (the setting's)" if 2**power == setting.analytic.gamma else ""
            print(f"{dataset}: gamma = 2**{power}: {accuracy:.2f} %{mark}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from benchmarks.paper import runner
    from benchmarks.paper.data import data_folder
    from benchmarks.paper.execution import methods

    setting = read(options.setting)
    methods(setting)  # raises, before anything is run, if it names an unknown one
    out = options.out or Path("build/paper")
    if options.workers is not None and options.workers < 0:
        raise SettingError(f"--workers is {options.workers}; 0 for this process alone, or more")
    cuda = _device(options.device).startswith("cuda")
    chosen = runner.Options(
        out=out,
        work=_work_folder(options.work),
        data=data_folder(options.data),
        device=_device(options.device),
        workers=options.workers if options.workers is not None else (6 if cuda else os.cpu_count() or 1),
        deadline=options.deadline,
        stop=options.stop,
        longest_first=options.longest_first,
        again=options.again,
        failed=options.failed,
        phase=options.phase,
        only=runner.parse_only(options.only),
    )
    if options.list:
        for key in runner.missing(setting, chosen):
            print(key, "(alone)" if key.timed else "")
        return 0
    left = runner.run(setting, chosen)
    failed = runner.failures(setting, chosen)
    if failed:
        print(f"{len(failed)} failed, {failed[0]} first: the same with --failed tries again what failed")
    if not left:
        print(f"tables and figures: python -m benchmarks.paper report {out}")
    return int(any(failed))


def _report(options: argparse.Namespace) -> int:
    from benchmarks.paper.report import NoResultsError, write_reports

    try:
        for path in write_reports(options.folder):
            print(path)
    except NoResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _data(options: argparse.Namespace) -> int:
    from benchmarks.paper import pack
    from benchmarks.paper.data import data_folder, load

    dataset = load(options.name, data_folder(options.data))
    print(f"{dataset.name}: {len(dataset.train_labels)} and {len(dataset.test_labels)} images, {dataset.digest()}")
    if options.verb == "pack":
        if options.folder is None:
            print("error: name the folder to write to: data pack NAME FOLDER", file=sys.stderr)
            return 2
        for place in pack.write(dataset, options.folder):
            size = sum(file.stat().st_size for file in place.iterdir())
            print(f"{place}: {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
