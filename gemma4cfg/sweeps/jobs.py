"""A sweep's words to its jobs, as Hydra's basic sweeper multiplies them out; what it would lose without a word is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from gemma4cfg.config.messages import translated
from gemma4cfg.errors import ConfigError


class Parser:
    """Words to Hydra's overrides; jobs share most of their words, and each is parsed once. Hydra has to be initialised."""

    def __init__(self) -> None:
        self._parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        self._known: dict[str, Any] = {}

    def __call__(self, words: Sequence[str]) -> list[Any]:
        """Raises ConfigError for a word that is no override."""
        for word in words:
            if word not in self._known:
                with translated():
                    (self._known[word],) = self._parser.parse_overrides([word])
        return [self._known[word] for word in words]


def jobs_of(words: Sequence[str], parser: Parser) -> list[tuple[str, ...]]:
    """The overrides of every job, the last key's values changing fastest.

    Raises ConfigError for what ``check_words`` refuses, and for a range without steps, which other sweepers sample.
    """
    overrides = check_words(words, parser)
    with translated():
        (jobs,) = BasicSweeper.split_arguments(overrides, None)
    return [tuple(job) for job in jobs]


def check_words(words: Sequence[str], parser: Parser) -> list[Any]:
    """The words parsed. Raises ConfigError for a key that is given twice, of which sweepers keep the last only, and for a
    sweep over nothing, which would be no jobs at all."""
    overrides = parser(words)
    first: dict[str, Any] = {}
    for override in overrides:
        if (earlier := first.setdefault(override.key_or_group, override)) is not override:
            together = ",".join(value for it in (earlier, override) for value in _values(it))
            raise ConfigError(
                f"{override.key_or_group} is given twice, {earlier.input_line} and {override.input_line}, and a sweep would "
                f"keep the last; give its values together: {override.get_key_element()}={together}"
            )
        if override.is_discrete_sweep() and not _values(override):
            options = GlobalHydra.instance().config_loader().get_group_options(override.key_or_group)
            there = f"; choices: {', '.join(options)}" if options else ""
            raise ConfigError(f"{override.input_line}: a sweep over nothing{there}")
    return overrides


def _values(override: Any) -> list[str]:
    if override.is_discrete_sweep():
        return list(override.sweep_string_iterator())
    return [override.input_line.partition("=")[2]]
