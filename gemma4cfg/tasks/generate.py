"""``task=generate``: make the plan, and text with it: rank files, CPU ranks, tokenizer, chat template, stop ids."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.files import PLAN_FILE, write_json
from gemma4cfg.tasks.shard import checkpoint_of, destination_of, write_rank_files
from gemma4cfg.views.answers import show_answers, show_piece
from sharding.files import is_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gemma4cfg.runtime.host.sampling import Sampler
    from gemma4cfg.runtime.host.session import Runner
    from gemma4cfg.runtime.text.tokenizer import Text, Tools

GENERATION_FILE = "generation.json"


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json`` and ``generation.json`` into ``directory``, and rank files where ``task=shard`` would.

    Everything that can be refused without weights is, before they are cut. Raises UserError where there is no plan or no
    prompt, an input is not sound, or a prompt does not fit; OSError.
    """
    choice, location = config.settings.generate, checkpoint_of(config).location
    prompts = _prompts(choice.prompt)
    tools = _tools(choice.tools)
    plan = build_plan(config)
    if is_url(destination_of(config, plan)):
        raise ConfigError(
            f"output={config.settings.output}: task=generate runs ranks on this machine, which read local files; give a "
            "local directory, or leave output out"
        )
    from gemma4cfg.runtime.host.sampling import Sampler  # torch is not paid for by what is refused above
    from gemma4cfg.runtime.host.session import check_generation

    sampler = Sampler(choice.temperature, choice.top_k, choice.top_p, choice.seed)
    text, stops = _inputs(plan, location, tools is not None, choice.check_inputs)
    prompt_ids = [text.prompt_ids(prompt, tools) for prompt in prompts]
    check_generation(plan, [len(ids) for ids in prompt_ids], sampler, choice.max_new_tokens)
    write_json(directory / PLAN_FILE, plan.to_json())
    report = {
        "plan_id": plan.plan_id,
        "model": plan.model,
        "tp": plan.tp,
        "dtype": plan.dtype,
        "checkpoint": location,
        "sampling": {key: getattr(sampler, key) for key in ("temperature", "top_k", "top_p", "seed")},
        "stop_ids": sorted(stops),
        **_generated(config, plan, text, prompts, prompt_ids, sampler, stops, console),
    }
    write_json(directory / GENERATION_FILE, report)
    show_answers(report, console)
    console.print(f"\n{directory / GENERATION_FILE}", style="dim", soft_wrap=True)
    return plan.findings


def _prompts(prompt: str | tuple[str, ...] | None) -> tuple[str, ...]:
    prompts = (prompt,) if isinstance(prompt, str) else prompt or ()
    if not prompts or not all(text.strip() for text in prompts):
        raise ConfigError(
            "task=generate needs something to answer: generate.prompt='\"What is the capital of France?\"', or a list of such"
        )
    return prompts


def _tools(path: str | None) -> Tools | None:
    if path is None:
        return None
    try:
        declared = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"generate.tools={path}: {error}; a JSON file with a list of tool declarations") from error
    if not isinstance(declared, list) or not declared or not all(isinstance(tool, dict) for tool in declared):
        raise ConfigError(f"generate.tools={path}: expected a JSON list of tool declarations, each an object")
    return declared


def _inputs(plan: Plan, location: str, tools: bool, checked: bool) -> tuple[Text, Collection[int]]:
    """The checkpoint's tokenizer with its template, and its stop ids."""
    from gemma4cfg.runtime.host.checks import check_planned_scale
    from gemma4cfg.runtime.host.stops import stop_ids
    from gemma4cfg.runtime.host.tables import vocabulary_of
    from gemma4cfg.runtime.text.checks import check_files, check_text
    from gemma4cfg.runtime.text.tokenizer import Text

    if checked:
        check_files(location)
        check_planned_scale(plan)
    text, stops = Text.load(location), stop_ids(location, tools)
    if checked:
        check_text(text, stops, vocabulary_of(plan), "generate.check_inputs")
    return text, stops


def _generated(
    config: Config,
    plan: Plan,
    text: Text,
    prompts: tuple[str, ...],
    prompt_ids: list[tuple[int, ...]],
    sampler: Sampler,
    stops: Collection[int],
    console: Console,
) -> dict[str, Any]:
    """``rank_files``, ``answers`` and ``seconds``. One answer is shown as it comes, several when all are there."""
    from gemma4cfg.runtime.host.checks import check_applied_scale
    from gemma4cfg.runtime.host.session import Session, generate
    from gemma4cfg.runtime.host.tables import HostTables
    from gemma4cfg.runtime.text.tokenizer import Stream
    from gemma4cfg.tasks.compile import compiled_runner

    marks = [time.perf_counter()]
    files = Path(destination_of(config, plan))
    write_rank_files(config, plan, str(files), console)
    tables = HostTables.open(plan, files)
    checked = config.settings.generate.check_inputs
    if checked:
        check_applied_scale(plan, tables, files)
    marks.append(time.perf_counter())
    stream = Stream(text)

    def came(_prompt: int, token: int) -> None:
        if len(marks) == 3:
            marks.append(time.perf_counter())
        if len(prompts) == 1:
            show_piece(stream.add(token), console)

    compiled = config.settings.generate.backend == "artifact"
    with compiled_runner(config, plan, files, console) if compiled else _ranks(plan, files, checked) as ranks:
        marks.append(time.perf_counter())
        session = Session(plan, tables, ranks)
        done = generate(session, prompt_ids, sampler, stops, config.settings.generate.max_new_tokens, came)
    marks.append(time.perf_counter())
    if len(prompts) == 1:
        show_piece(stream.end() + "\n", console)
    names = ("rank_files", "load", "first_token", "rest")
    spans = zip(names, marks, marks[1:], strict=False)
    return {
        "rank_files": str(files),
        "answers": [
            {
                "prompt": prompt,
                "prompt_ids": list(ids),
                "text": text.decode(one.token_ids),
                "token_ids": list(one.token_ids),
                "finish_reason": one.finish_reason,
            }
            for prompt, ids, one in zip(prompts, prompt_ids, done, strict=True)
        ],
        "seconds": {name: round(after - before, 3) for name, before, after in spans},
    }


@contextmanager
def _ranks(plan: Plan, files: Path, checked: bool) -> Iterator[Runner]:
    from gemma4cfg.runtime.host.checks import check_device_scale
    from gemma4cfg.runtime.ranks import forked_ranks

    with forked_ranks(plan, files) as ranks:
        if checked:
            check_device_scale(plan, ranks.embedding_scale())
        yield ranks
