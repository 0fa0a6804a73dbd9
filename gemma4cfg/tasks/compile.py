"""``task=compile``: make the plan, carry its calls out as far as this machine can, and say what was not done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gemma4cfg.compile.script import render
from gemma4cfg.config.schema import Config
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.errors import ConfigError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.files import COMPILE_FILE, PLAN_FILE, SCRIPT_FILE, write_json
from gemma4cfg.tasks.shard import SHARDS, write_rank_files
from gemma4cfg.views.compiled import show_compiled, show_not_done
from sharding.files import is_url

if TYPE_CHECKING:
    from gemma4cfg.compile.backend import Backend
    from gemma4cfg.compile.run import Compiled
    from gemma4cfg.runtime.host.session import Runner

ARTIFACTS = Path("outputs") / "artifacts"


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json``, ``compile.json`` and ``compile.py`` into ``directory``, artifacts into ``output``, or under
    ``outputs/artifacts``; with a checkpoint the rank files too, under ``outputs/shards``.

    Raises UserError where there is no plan, a graph is known to fail on the target, or the SDK is asked for and not here.
    """
    plan = build_plan(config)
    choice = config.settings.compile
    root, workdir = _places(config)
    _refuse_unreachable(choice.mirror)
    from gemma4cfg.compile.artifacts import Artifacts  # torch is not paid for by what is refused above
    from gemma4cfg.compile.choose import backend_of
    from gemma4cfg.compile.run import Work, compile_plan

    backend = backend_of(plan, choice.backend, config.settings.checkpoint)
    rank_files: Path | None = None
    if config.checkpoint is not None:
        rank_files = SHARDS / plan.placement_id
        write_rank_files(config, plan, str(rank_files), console)
    write_json(directory / PLAN_FILE, plan.to_json())
    (directory / SCRIPT_FILE).write_text(render(plan), encoding="utf-8")
    work = Work(
        artifacts=Artifacts(root, choice.mirror),
        workdir=workdir,
        rank_files=rank_files,
        explain=choice.explain,
    )
    results: list[Compiled] = []

    def done(result: Compiled) -> None:
        results.append(result)
        show_compiled(to_plain(result), console)

    console.print(f"{backend.name}: {', '.join(f'{name} {found}' for name, found in backend.versions().items())}")
    compile_plan(plan, backend, sdk_of(config, plan), target_of(config, plan), work, done)
    undone = _not_done(plan, backend, choice.backend, rank_files)
    if backend.name != "export" and rank_files is not None and not undone:
        backend.load(plan, _directories(results), rank_files)
        console.print("loaded again from disk, rank files and all")
    show_not_done(undone, console)
    plain = {
        "plan_id": plan.plan_id,
        "backend": backend.name,
        "versions": dict(backend.versions()),
        "units": to_plain(tuple(results)),
        "not_done": list(undone),
    }
    write_json(directory / COMPILE_FILE, plain)
    console.print(f"\n{directory / COMPILE_FILE}\n{directory / SCRIPT_FILE}", style="dim", soft_wrap=True)
    return (*plan.findings, *(finding for result in results for finding in result.findings))


def _not_done(plan: Plan, backend: Backend, asked: str, rank_files: Path | None) -> tuple[str, ...]:
    """What the plan's calls ask for and was not carried out here, a sentence each."""
    from gemma4cfg.compile.choose import has_device, sdk_lacks

    undone = []
    if backend.name == "export":
        why = "compile.backend=export" if asked == "export" else sdk_lacks(plan)
        undone.append(
            f"nothing was compiled for the device: {why}; the programs are torch.export's, of the same modules"
        )
    if rank_files is None:
        undone.append("no rank files were cut and nothing was loaded: there is no checkpoint=DIR")
    elif not has_device():
        undone.append("nothing was loaded: there is no Neuron device on this machine")
    return tuple(undone)


def _directories(units: Sequence[Compiled]) -> dict[str, Path]:
    return {unit.name: Path(unit.directory) for unit in units}


def compiled_runner(config: Config, plan: Plan, rank_files: Path, console: Console) -> AbstractContextManager[Runner]:
    """What runs the programs of ``plan`` over ``rank_files``, read back from disk: made first where they are not there yet.
    On a Neuron device with the SDK they are its own, elsewhere torch.export's on CPU ranks.

    Raises UserError as ``run``, RankError where a rank fails.
    """
    from gemma4cfg.compile.artifacts import Artifacts
    from gemma4cfg.compile.choose import backend_of, has_device
    from gemma4cfg.compile.export_backend import artifact_ranks
    from gemma4cfg.compile.run import Work, compile_plan

    root, workdir = _places(config)
    backend = backend_of(plan, "auto" if has_device() else "export", config.settings.checkpoint)
    units = compile_plan(
        plan,
        backend,
        sdk_of(config, plan),
        target_of(config, plan),
        Work(Artifacts(root, None), workdir, rank_files, False),
        lambda unit: show_compiled(to_plain(unit), console),
    )
    if backend.name == "export":
        return artifact_ranks(plan, _directories(units), rank_files)
    return nullcontext(backend.load(plan, _directories(units), rank_files))


def artifact_root(config: Config) -> Path:
    """Where artifacts go. Raises ConfigError for an URL."""
    output = config.settings.output
    if output and is_url(output):
        raise ConfigError(
            f"output={output}: the compiler writes to local directories; leave output out and give compile.mirror={output}"
        )
    return Path(output) if output else ARTIFACTS


def _places(config: Config) -> tuple[Path, Path]:
    """Where artifacts go, and the compiler's scratch. Raises ConfigError for an URL, and for what cannot be a directory."""
    root, given = artifact_root(config), config.settings.compile.workdir
    if given and is_url(given):
        raise ConfigError(
            f"compile.workdir={given}: the compiler writes to local directories; e.g. compile.workdir=/tmp/work"
        )
    workdir = Path(given) if given else root / ".workdir"
    _refuse_unwritable("output", root)
    _refuse_unwritable("compile.workdir", workdir)
    return root, workdir


def _refuse_unwritable(key: str, place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{key}={place}: cannot be a directory: {error.strerror}; give one that can be written"
        ) from None


def _refuse_unreachable(mirror: str | None) -> None:
    """Raises ConfigError before anything is compiled: a mirror that fails afterwards has kept nothing."""
    if mirror is None:
        return
    if not is_url(mirror):
        _refuse_unwritable("compile.mirror", Path(mirror))
        return
    from sharding.stores import open_store

    try:
        open_store(mirror).names()
    except Exception as error:  # each store has errors of its own
        raise ConfigError(
            f"compile.mirror={mirror}: cannot be read: {error}; give a directory or URL that can be reached from here, with "
            "its credentials, e.g. compile.mirror=s3://bucket/artifacts"
        ) from error


def sdk_of(config: Config, plan: Plan) -> Sdk:
    """The plan's release."""
    return next(sdk for sdk in config.sdks if sdk.name == plan.sdk)


def target_of(config: Config, plan: Plan) -> Target:
    """The plan's machine."""
    return next(target for target in (*config.targets, *config.known_targets) if target.name == plan.target)
