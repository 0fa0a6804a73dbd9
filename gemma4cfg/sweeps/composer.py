"""Jobs composed without composing each: a Hydra composition takes some thirty milliseconds, a plan a third of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from gemma4cfg.config.messages import translated
from gemma4cfg.sweeps.jobs import Parser

Plain = dict[str, Any]

_ABSENT = object()


class Composer:
    """Plain configurations of jobs; Hydra has to be initialised.

    Each choice of a group is composed once, and choices that change different nodes are put together; a plain value is set
    where it belongs. Whatever is more than that (dictionaries, additions, deletions, interpolations, choices that meddle
    with the same node) is composed as a whole, so that the result is always Hydra's own.
    """

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._composed: dict[tuple[str, ...], Plain | None] = {}
        self._chosen: dict[tuple[str, ...], Plain | None] = {}
        self._is_group: dict[str, bool] = {}

    def __call__(self, words: Sequence[str]) -> Plain:
        """Raises ConfigError for what Hydra cannot compose."""
        chosen: list[str] = []
        values: list[tuple[str, Any]] = []
        for word, override in zip(words, self._parser(words), strict=True):
            value = override.value()
            plain = not (override.is_add() or override.is_force_add() or override.is_delete() or override.package)
            if not plain or override.is_hydra_override() or not _is_simple(value):
                return _compose(words)
            if self._group(override.key_or_group):
                chosen.append(word)
            else:
                values.append((override.key_or_group, value))
        composed = self._of_choices(tuple(chosen))
        for key, value in values:
            if composed is None:
                break
            composed = _with_value(composed, key.split("."), value)
        return _compose(words) if composed is None else composed

    def _group(self, key: str) -> bool:
        if key not in self._is_group:
            self._is_group[key] = bool(GlobalHydra.instance().config_loader().get_group_options(key))
        return self._is_group[key]

    def _of_choices(self, words: tuple[str, ...]) -> Plain | None:
        """The composition of choices; null where values could not be set into it afterwards."""
        if words not in self._chosen:
            self._chosen[words] = self._joined(words)
        return self._chosen[words]

    def _joined(self, words: tuple[str, ...]) -> Plain | None:
        base = self._settled(())
        if base is None:
            return None
        joined, claimed = dict(base), set[str]()
        for word in words:
            composed = self._settled((word,))
            if composed is None:
                return None
            new = {key for key in {*base, *composed} if base.get(key, _ABSENT) != composed.get(key, _ABSENT)}
            claims = {word.partition("=")[0], *new}  # its own node even where it is the default: said is said
            if claims & claimed or set(base) - set(composed):
                return self._settled(words)
            joined |= {key: composed[key] for key in new}
            claimed |= claims
        return joined

    def _settled(self, words: tuple[str, ...]) -> Plain | None:
        """Composed by Hydra; null if a value in it depends on another or is missing."""
        if words not in self._composed:
            with translated():
                composed = compose("config", overrides=list(words))
                raw = OmegaConf.to_container(composed, resolve=False)
            self._composed[words] = raw if _is_settled(raw) else None  # type: ignore[assignment]
        return self._composed[words]


def _compose(words: Sequence[str]) -> Plain:
    with translated():
        composed = compose("config", overrides=list(words))
        plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    return plain  # type: ignore[no-any-return]


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_simple(item) and not isinstance(item, list) for item in value)
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and _is_settled(value))


def _is_settled(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_settled, value.values()))
    if isinstance(value, list):
        return all(map(_is_settled, value))
    return not (isinstance(value, str) and ("${" in value or value == "???"))


def _with_value(plain: Plain, path: Sequence[str], value: Any) -> Plain | None:
    """A copy with the value at ``path``; null where there is no plain value to replace."""
    key, *rest = path
    held = plain.get(key, _ABSENT)
    if not rest:
        return None if held is _ABSENT or isinstance(held, dict) else {**plain, key: value}
    inner = _with_value(held, rest, value) if isinstance(held, dict) else None
    return None if inner is None else {**plain, key: inner}
