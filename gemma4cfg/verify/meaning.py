"""Whether the text makes sense. A port can match its reference token for token and both be nonsense, when what they are
given is: logits do not tell."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.checks import check_planned_scale
from gemma4cfg.runtime.host.sampling import Sampler
from gemma4cfg.runtime.host.schedule import check_prompt
from gemma4cfg.runtime.host.session import Runner, Session, generate
from gemma4cfg.runtime.host.stops import stop_ids
from gemma4cfg.runtime.host.tables import HostTables, vocabulary_of
from gemma4cfg.runtime.text.checks import check_files, check_text
from gemma4cfg.runtime.text.tokenizer import Text
from gemma4cfg.verify.records import Check

PROMPT = "What is the capital of France?"

ANSWER_TOKENS = 32
"""Where the context has room for them."""


@dataclass(frozen=True, slots=True)
class Question:
    """``prompt_ids`` is ``PROMPT`` as the checkpoint's files write it; ``expected`` has to be in the answer's text."""

    text: Text
    prompt_ids: tuple[int, ...]
    stops: Collection[int]
    expected: str


def question_of(config: Config, plan: Plan) -> Question | None:
    """What ``verify.expect`` asks; null where it is. Nothing is run yet.

    Raises ConfigError where there is no text to expect, UserError where an input is not sound: its fault would look like
    the plan's.
    """
    choice = config.settings.verify
    if choice.expect is None:
        if not choice.check_inputs:
            raise ConfigError("verify.check_inputs is never read without verify.expect; leave it out")
        return None
    if not choice.expect.strip():
        raise ConfigError("verify.expect is blank, which every answer contains; e.g. verify.expect=Paris")
    if config.checkpoint is None:
        raise ConfigError(
            f"verify.expect={choice.expect}: a tiny twin's weights are random, so its text means nothing; give "
            "checkpoint=DIR, or leave verify.expect out"
        )
    for key, value in (("inject", choice.inject), ("layers", choice.layers)):
        if value is not None:
            raise ConfigError(
                f"verify.expect={choice.expect} is never read with verify.{key}={value}; leave one of them out"
            )
    location = config.checkpoint.location
    if choice.check_inputs:
        check_files(location)
        check_planned_scale(plan)
    text, stops = Text.load(location), stop_ids(location)
    if choice.check_inputs:
        check_text(text, stops, vocabulary_of(plan), "verify.check_inputs")
    prompt_ids = text.prompt_ids(PROMPT)
    check_prompt(plan, 0, len(prompt_ids), 1, "verify.expect")
    return Question(text, prompt_ids, stops, choice.expect)


def answer_to(question: Question, plan: Plan, runner: Runner, directory: Path) -> str:
    """The text of what runs ``plan``; its rank files are in ``directory``."""
    room = plan.shapes.kv_length - len(question.prompt_ids)
    session = Session(plan, HostTables.open(plan, directory), runner)
    (answer,) = generate(session, [question.prompt_ids], Sampler(), question.stops, min(ANSWER_TOKENS, room))
    return question.text.decode(answer.token_ids)


def text_as_expected(question: Question, answer: str) -> Check:
    found = question.expected in answer
    wanted = "" if found else f", not what verify.expect={question.expected} says"
    return Check("meaning", found, None, None, f"'{PROMPT}' gives '{answer}'{wanted}")
