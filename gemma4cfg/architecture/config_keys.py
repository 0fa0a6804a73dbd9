"""Typed access to the keys of a config.json, with errors that name the key, its value and what would be accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gemma4cfg.errors import ConfigError


class ConfigKeys:
    """One level of a config.json; ``prefix`` is its path (``text_config.``). Every method raises ConfigError."""

    def __init__(self, values: Mapping[str, Any], prefix: str) -> None:
        self.values = values
        self.prefix = prefix

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def wrong(self, key: str, expected: str) -> ConfigError:
        shown = json.dumps(self.get(key), ensure_ascii=False, default=str)
        return ConfigError(f"config.json: {self.prefix}{key}={shown}: {expected}")

    def required(self, key: str) -> Any:
        if key not in self.values:
            raise ConfigError(f"config.json: {self.prefix}{key} is missing; published Gemma-4 configurations state it")
        return self.values[key]

    def integer(self, key: str, minimum: int = 1, default: int | None = None) -> int:
        """Required where there is no default; null counts as absent."""
        value = self.required(key) if default is None else self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < minimum:
            raise self.wrong(key, f"expected a whole number from {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.required(key) if default is None else self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "expected a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "expected true or false")
        return value
