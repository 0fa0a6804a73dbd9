"""Plain data (dicts, lists, scalars) into frozen dataclasses, with errors in the words of whoever wrote the data.

One decoder serves the configuration and ``Plan.from_json``: a record's type hints are its schema. Understood are
``int``, ``float``, ``str``, ``bool``, ``None``, ``Any``, ``Literal``, unions, ``tuple[T, ...]``, ``dict[str, T]``,
``Mapping[str, T]`` and dataclasses. A field's ``metadata`` may hold ``minimum`` and ``maximum``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gemma4cfg.errors import ConfigError, did_you_mean

T = TypeVar("T")


def decode(kind: type[T], data: Any, path: str = "") -> T:
    """``data`` as a ``kind``.

    Raises ConfigError naming the dotted path, the value found and what would be accepted.
    """
    result: T = _decode(kind, data, path)
    return result


@functools.cache
def _schema(kind: Any) -> tuple[tuple[Any, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field, hints[field.name]) for field in fields(kind) if field.init)


def _decode(kind: Any, data: Any, path: str) -> Any:
    if is_dataclass(kind):
        return _decode_record(kind, data, path)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(kind, data, path)
    if origin is Literal:
        choices = get_args(kind)
        if data not in choices or isinstance(data, bool) != any(isinstance(c, bool) for c in choices):
            shown = " | ".join(str(choice) for choice in choices)
            near = did_you_mean(data, [str(c) for c in choices]) if isinstance(data, str) else ""
            near = near if "did you mean" in near else ""
            raise ConfigError(f"{path}={data}: expected {shown}{near}")
        return data
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise ConfigError(f"{path}={_show(data)}: expected a list, e.g. {path}=[{_show(data)}]")
        return tuple(_decode(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if origin in (dict, Mapping):
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path}={data}: expected a mapping")
        value_kind = get_args(kind)[1]
        return {str(key): _decode(value_kind, value, f"{path}.{key}") for key, value in data.items()}
    return _decode_scalar(kind, data, path)


def _decode_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is Any:
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is types.NoneType:
        kind = type(None)
    if isinstance(data, float) and not isfinite(data):
        raise ConfigError(f"{path}={data}: expected a finite number")
    if isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    name = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, "null")
    raise ConfigError(f"{path}={_show(data)}: expected {name}, found {_type_name(data)}")


def _decode_union(kind: Any, data: Any, path: str) -> Any:
    members = get_args(kind)
    if data is None and type(None) in members:
        return None
    members = tuple(member for member in members if member is not type(None))
    if len(members) == 1:
        return _decode(members[0], data, path)
    problems = []
    for member in members:
        try:
            return _decode(member, data, path)
        except ConfigError as error:
            problems.append(str(error).partition(": expected ")[2] or str(error))
    raise ConfigError(f"{path}={_show(data)}: expected " + ", or ".join(dict.fromkeys(problems)))


def _decode_record(kind: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}={_show(data)}: expected a mapping with the keys {', '.join(_names(kind))}")
    values = {}
    prefix = f"{path}." if path else ""
    for field, hint in _schema(kind):
        if field.name in data:
            value = _decode(hint, data[field.name], prefix + field.name)
            _check_range(field, value, prefix + field.name)
            values[field.name] = value
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{prefix}{field.name} is missing")
    if len(values) < len(data):
        unknown = next((key for key in data if key not in _names(kind)), None)
        if unknown is not None:
            raise ConfigError(f"unknown key {prefix}{unknown}{did_you_mean(str(unknown), _names(kind))}")
    return kind(**values)


def _check_range(field: Any, value: Any, path: str) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if not isinstance(item, (int, float)) or isinstance(item, bool):
            continue
        minimum, maximum = field.metadata.get("minimum"), field.metadata.get("maximum")
        if minimum is not None and item < minimum:
            raise ConfigError(f"{path}={item}: must be at least {minimum}")
        if maximum is not None and item > maximum:
            raise ConfigError(f"{path}={item}: must be at most {maximum}")


def _names(kind: Any) -> list[str]:
    return [field.name for field, _ in _schema(kind)]


def _show(data: Any) -> str:
    return "null" if data is None else str(data)


def _type_name(data: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
    return names.get(type(data), "a mapping" if isinstance(data, Mapping) else "a list")
