"""What decides an artifact: its key, and what two keys differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gemma4cfg.plan.encode import digest


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known before anything is exported. ``graphs``: name to graph id. ``weights``: SHA-256 of the weights that the
    program carries, null where it carries none. ``source``: of this package's code, from which the graphs' text follows;
    ``rules``: of the release's and machine's facts, which graphs are checked against."""

    backend: str
    graphs: Mapping[str, str]
    versions: Mapping[str, str]
    flags: Mapping[str, tuple[str, ...]]
    weights: str | None
    source: str
    rules: str


@dataclass(frozen=True, slots=True)
class Key:
    """``texts`` and ``constants``: graph name to SHA-256 of its text, and of the values baked into it."""

    backend: str
    graphs: Mapping[str, str]
    texts: Mapping[str, str]
    constants: Mapping[str, str]
    versions: Mapping[str, str]
    flags: Mapping[str, tuple[str, ...]]
    weights: str | None

    @classmethod
    def of(cls, inputs: Inputs, texts: Mapping[str, str], constants: Mapping[str, str]) -> Key:
        return cls(inputs.backend, inputs.graphs, texts, constants, inputs.versions, inputs.flags, inputs.weights)

    @property
    def id(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        return {**plain, "flags": {name: list(flags) for name, flags in self.flags.items()}}


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    """Where two keys' JSON differ: ``versions.neuronx-cc: 2.23 there, 2.26 here``."""
    return tuple(_differences("", wanted, found))


def _differences(path: str, wanted: Any, found: Any) -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys((*wanted, *found)):
            yield from _differences(f"{path}.{key}" if path else key, wanted.get(key), found.get(key))
    elif wanted != found:
        yield f"{path}: {_short(found)} there, {_short(wanted)} here"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value) or "none"
    text = "none" if value is None else str(value)
    return text[:12] if len(text) == 64 else text
