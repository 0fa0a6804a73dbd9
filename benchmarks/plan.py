"""Planning's speed against its targets, side by side in one run: ``python benchmarks/plan.py [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import get_args

from gemma4cfg import UserError, build_plan, load_config, sweep
from gemma4cfg.config.catalog import choices, every_choice
from gemma4cfg.config.compose import FAMILY_ORDER
from gemma4cfg.config.schema import Config, Policy
from gemma4cfg.config.space import TP_DEGREES
from gemma4cfg.config.target import Target

MINIMAL = {
    "conf/config.yaml": "defaults:\n  - thing: one\n",
    "conf/thing/one.yaml": "value: 1\n",
    "app.py": (
        "import hydra\n\n\n"
        '@hydra.main(version_base="1.3", config_path="conf", config_name="config")\n'
        "def main(config):\n    print(config.thing.value)\n\n\nmain()\n"
    ),
}
"""A Hydra application of one group with one choice: what any command line on Hydra costs."""

PLAN = ("-m", "gemma4cfg", "model=31b", "tp=8")
COMMANDS = {
    "minimal Hydra application": ("app.py",),
    "gemma4cfg model=31b tp=8": PLAN,
    "gemma4cfg … target=inf2.24xlarge sdk=neuron-2.28": (*PLAN, "target=inf2.24xlarge", "sdk=neuron-2.28"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; ``target`` is the most that is allowed, null where there is no such promise."""

    what: str
    value: float
    unit: str
    target: float | None
    detail: str

    @property
    def verdict(self) -> str:
        return "" if self.target is None else "met" if self.value <= self.target else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--pairs", type=int, default=9, help="runs of each command, in turn (at least 7)")
    parser.add_argument("--plans", type=int, default=200, help="plans for the in-process median (at least 50)")
    parser.add_argument("--hydra", action="store_true", help="the sweep through -m as well, which takes minutes")
    given = parser.parse_args()
    rows = [*command_line(max(given.pairs, 7)), one_plan(max(given.plans, 50)), many_plans(), one_sweep(), *searches()]
    rows += [hydras_sweep()] if given.hydra else []
    show(rows)
    if given.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
        figures = [{**asdict(row), "verdict": row.verdict} for row in rows]
        given.json.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n", encoding="utf-8")


def command_line(pairs: int) -> Iterator[Row]:
    """Wall time and peak memory of the commands, run in turn, so that a busy machine slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    peaks: dict[str, list[int]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in MINIMAL.items():
            path = Path(scratch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for turn in range(pairs + 1):
            for name, arguments in COMMANDS.items():
                elapsed, peak = run(arguments, scratch)
                if turn:  # the first warms file caches and bytecode
                    seconds[name].append(elapsed)
                    peaks[name].append(peak)
    minimal, *others = COMMANDS
    yield Row(minimal, statistics.median(seconds[minimal]), "s", None, spread(seconds[minimal], "s"))
    for name in others:
        ratios = [mine / floor for mine, floor in zip(seconds[name], seconds[minimal], strict=True)]
        yield Row(name, statistics.median(seconds[name]), "s", None, spread(seconds[name], "s"))
        yield Row("  against the minimal, pair by pair", statistics.median(ratios), "x", 2.0, spread(ratios, "x"))
    for name in (minimal, others[0]):
        yield Row(f"peak memory: {name}", max(peaks[name]) / 2**20, "MiB", None, "resident")


def run(arguments: Sequence[str], directory: str) -> tuple[float, int]:
    """Seconds and peak resident bytes of one command of this interpreter."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        words = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        elapsed = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}:\n{words.decode()}")
    return elapsed, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def one_plan(count: int) -> Row:
    """``build_plan`` alone: the configuration is composed before."""
    config = load_config(["model=31b", "tp=8"])
    milliseconds = []
    for turn in range(count + 10):
        started = time.perf_counter()
        build_plan(config)
        if turn >= 10:
            milliseconds.append((time.perf_counter() - started) * 1e3)
    return Row(
        f"build_plan, 31b tp=8, {count} times", statistics.median(milliseconds), "ms", 15.0, spread(milliseconds, "ms")
    )


def many_plans() -> Row:
    """A thousand plans of one process; a refusal counts as a plan, for it is as much work."""
    configs = list(thousand())
    refused = 0
    started = time.perf_counter()
    for config in configs:
        try:
            build_plan(config)
        except UserError:
            refused += 1
    elapsed = time.perf_counter() - started
    return Row(
        f"{len(configs):,} plans", elapsed, "s", 10.0, f"{refused} refused, {elapsed / len(configs) * 1e3:.1f} ms each"
    )


def thousand() -> Iterator[Config]:
    """Five models x 32 TP degrees x 5 policies, and at TP 1 to 8 again with the whole head on every rank."""
    composed = [load_config([f"model={name}"]) for name in choices("model")]
    for base, tp, policy in product(composed, range(1, 33), get_args(Policy)):
        attention = replace(base.settings.attention, policy=policy)
        settings = replace(base.settings, tp=tp, attention=attention)
        yield replace(base, settings=settings)
        if tp <= 8:
            yield replace(base, settings=replace(settings, lm_head=replace(settings.lm_head, partition="replicate")))


def sweep_words() -> list[str]:
    """Five models x eight TP degrees x three policies x nine machines."""
    machines = [target.name for target in every_choice(Target, "target") if target.family in FAMILY_ORDER]
    words = {
        "model": choices("model"),
        "tp": TP_DEGREES,
        "attention.policy": ("auto", "replicate", "group"),
        "target": machines,
    }
    return [f"{key}={','.join(map(str, values))}" for key, values in words.items()]


def one_sweep() -> Row:
    """In this process, from words to rows, composing included."""
    started = time.perf_counter()
    rows = sweep(sweep_words())
    elapsed = time.perf_counter() - started
    refused = sum(row.status == "refused" for row in rows)
    return Row(
        f"sweep of {len(rows):,} jobs",
        elapsed,
        "s",
        15.0,
        f"{refused} refused, {elapsed / len(rows) * 1e3:.1f} ms each",
    )


def hydras_sweep() -> Row:
    """The same jobs as a person starts them; Hydra composes each and gives it a directory."""
    with tempfile.TemporaryDirectory() as scratch:
        elapsed, peak = run(("-m", "gemma4cfg", "-m", *sweep_words(), f"hydra.sweep.dir={scratch}/sweep"), scratch)
        jobs = len(json.loads(Path(scratch, "sweep", "sweep.json").read_text(encoding="utf-8"))["jobs"])
    return Row(f"the same {jobs:,} jobs through -m", elapsed, "s", None, f"peak memory {peak / 2**20:.0f} MiB")


def searches() -> Iterator[Row]:
    """The best plan of each model over every machine, TP degree, policy, partition and offload."""
    for name in choices("model"):
        config = load_config([f"model={name}", "tp=auto", "target=auto", "objective=latency"])
        started = time.perf_counter()
        plan = build_plan(config)
        elapsed = time.perf_counter() - started
        yield Row(f"objective=latency, {name}", elapsed, "s", 5.0, f"tp={plan.tp} target={plan.target}")


def spread(values: Sequence[float], unit: str) -> str:
    return f"{min(values):.3g}-{max(values):.3g} {unit}, median of {len(values)}"


def show(rows: Sequence[Row]) -> None:
    cells = [("what", "value", "target", "", "detail")]
    for row in rows:
        target = "" if row.target is None else f"<= {row.target:g} {row.unit}"
        cells.append((row.what, f"{row.value:.3g} {row.unit}", target, row.verdict, row.detail))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
