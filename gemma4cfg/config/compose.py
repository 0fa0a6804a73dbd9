"""From a composed Hydra configuration, or from overrides alone, to a checked ``Config``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

from gemma4cfg.architecture.model import Architecture, MoeFacts, PleFacts
from gemma4cfg.architecture.stored import Checkpoint
from gemma4cfg.config.catalog import choices, conf_directory, decode_choice, every_choice
from gemma4cfg.config.schema import GROUPS, Config, Recipe, Settings
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.space import search_space
from gemma4cfg.config.target import Target
from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError

T = TypeVar("T")

AUTO = "auto"
FAMILY_ORDER = ("inf2", "trn1", "trn2")
"""Machine families that ``target=auto`` may choose, in order of preference."""


def load_config(overrides: Sequence[str] = ()) -> Config:
    """Compose ``conf/`` with Hydra overrides (``["model=31b", "tp=8"]``) and check the result.

    Raises ConfigError for an unknown key or choice, a value of the wrong type or range, or an unreadable checkpoint.
    """
    from hydra import compose
    from omegaconf import OmegaConf

    from gemma4cfg.config.messages import translated

    with translated(), hydra_initialised():
        composed = compose("config", overrides=list(overrides))
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    return config_from_plain(plain, overrides)  # type: ignore[arg-type]


@contextmanager
def hydra_initialised() -> Iterator[None]:
    """Hydra with ``conf/`` inside the block; where it is initialised already, that one."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        yield
    else:
        with initialize_config_dir(str(conf_directory()), version_base="1.3"):
            yield


def config_from_plain(plain: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """A composed configuration (plain data, ``hydra`` node left out) as a ``Config``.

    Raises ConfigError naming the key, the value found and what would work; checkpoint headers are read here.
    """
    known = {*GROUPS, *(field.name for field in fields(Settings))}
    for key, value in plain.items():
        if key not in known:
            from gemma4cfg.config.messages import key_hint

            dotted = f"{key}.{next(iter(value))}" if isinstance(value, Mapping) and value else key
            raise ConfigError(f"unknown key {dotted}{key_hint(dotted)}")
    for group in GROUPS:
        if not isinstance(plain.get(group), Mapping):
            named = f"{group}={plain[group]}: not a choice" if group in plain else f"{group} is missing"
            raise ConfigError(f"{named}; choices of {group}: auto, {', '.join(choices(group))}")
    tp_is_open = plain.get("tp") == AUTO
    given = {key: value for key, value in plain.items() if key not in GROUPS}
    settings = decode(Settings, {**given, "tp": 1} if tp_is_open else given)
    checkpoint = _read(settings.checkpoint) if settings.checkpoint else None
    published = {architecture.name: architecture for architecture in every_choice(Architecture, "model")}
    known_targets = tuple(sorted(every_choice(Target, "target"), key=_preference))
    model = _model(plain["model"], checkpoint, published)
    return Config(
        settings=settings,
        model=model,
        targets=_chosen(Target, "target", plain["target"])
        or tuple(t for t in known_targets if t.family in FAMILY_ORDER),
        sdks=_chosen(Sdk, "sdk", plain["sdk"]) or every_choice(Sdk, "sdk"),
        recipes=_chosen(Recipe, "recipe", plain["recipe"]) or every_choice(Recipe, "recipe"),
        checkpoint=checkpoint,
        known_targets=known_targets,
        overrides=tuple(overrides),
        published=published,
        search=search_space(settings, tp_is_open, model, overrides),
    )


def _read(location: str) -> Checkpoint:
    from gemma4cfg.architecture.checkpoint import read_checkpoint  # not paid for where there is no checkpoint

    return read_checkpoint(location)


def _model(
    data: Mapping[str, Any], checkpoint: Checkpoint | None, published: Mapping[str, Architecture]
) -> Architecture:
    """The architecture under the name of the published model it equals, else ``custom``."""
    if data.get("name") == AUTO:
        _refuse_extra_keys("model", data)
        if checkpoint is None:
            names = ", ".join(published)
            raise ConfigError(f"no model is chosen: model=NAME ({names}), or checkpoint=DIR for the model it holds")
        from gemma4cfg.architecture.huggingface import architecture_from_config

        architecture = architecture_from_config(checkpoint.config)
    else:
        if (known := published.get(str(data.get("name")))) is not None:
            _refuse_part_of_absent(data, known)
        architecture = decode(Architecture, data, "model")
    for known in published.values():
        if architecture == known:
            return replace(known, checkpoint_dtype=architecture.checkpoint_dtype)
    return replace(architecture, name="custom")


def _refuse_part_of_absent(data: Mapping[str, Any], known: Architecture) -> None:
    """Raises ConfigError for some keys of a part that the model ``known``, from which ``data`` starts, does not have."""
    for part, (facts, name) in {"moe": (MoeFacts, "experts"), "ple": (PleFacts, "per-layer embeddings")}.items():
        given = data.get(part)
        if getattr(known, part) is not None or not isinstance(given, Mapping):
            continue
        missing = [field.name for field in fields(facts) if field.name not in given]
        if missing:
            keys, others = (", ".join(f"model.{part}.{key}" for key in names) for names in (given, missing))
            raise ConfigError(
                f"{keys}: {known.name} has no {name}; leave {keys} out (a model that has them needs {others} too)"
            )


def _chosen(kind: type[T], group: str, data: Mapping[str, Any]) -> tuple[T, ...]:
    """The one choice, or nothing where it is left to the planner."""
    if data.get("name") != AUTO:
        return (decode_choice(kind, group, data),)
    _refuse_extra_keys(group, data)
    return ()


def _refuse_extra_keys(group: str, data: Mapping[str, Any]) -> None:
    for key in data:
        if key != "name":
            raise ConfigError(
                f"{group}.{key} has nothing to act on while {group}=auto: choose one first, e.g. {group}={choices(group)[0]}"
            )


def _preference(target: Target) -> tuple[int, int, int]:
    """Fewest device bytes, then host memory, then inf2, trn1, trn2; other families last."""
    family = FAMILY_ORDER.index(target.family) if target.family in FAMILY_ORDER else len(FAMILY_ORDER)
    return target.device_bytes, target.host_memory_gib, family
