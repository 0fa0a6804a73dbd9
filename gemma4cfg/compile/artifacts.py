"""Where artifacts are kept: a directory for each key, whole or absent, and a second place for them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4cfg.compile.key import Inputs, Key, differences
from gemma4cfg.plan.encode import digest
from sharding.errors import ShardingError
from sharding.files import file_names, file_size, join, json_object, read_bytes
from sharding.stores import copy_in, open_store
from sharding.writer import remove_abandoned, sync_directory, temporary_path, write_file

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = "1.0"
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Artifact:
    """``key`` in JSON form; ``inputs`` is the digest of what it was looked up by, ``files`` name to size and SHA-256."""

    directory: str
    key_id: str
    key: Mapping[str, Any]
    inputs: str
    files: Mapping[str, tuple[int, str]]


class Artifacts:
    """Artifacts below a local directory, ``<unit>/<key>``: a unit's directory is its graph's id, or the digest of its
    graphs' ids where there are several. ``mirror`` is a directory or fsspec URL that is laid out alike.

    A manifest is the last file of an artifact: a directory without one is no artifact. What a failed or killed build left is
    never looked at, and removed.
    """

    def __init__(self, root: Path, mirror: str | None) -> None:
        self.root, self._mirror = root, mirror

    def find(self, inputs: Inputs) -> Artifact | None:
        """The artifact made from ``inputs``, here or fetched from the mirror."""
        wanted = _inputs_digest(inputs)
        return self._first(_unit(inputs.graphs), lambda artifact: artifact.inputs == wanted)

    def find_key(self, key: Key) -> Artifact | None:
        """The artifact of ``key``, whichever code made it, here or fetched from the mirror."""
        return self._first(_unit(key.graphs), lambda artifact: artifact.key_id == key.id)

    def keep(self, inputs: Inputs, key: Key, build: Callable[[Path], None], told: Mapping[str, str]) -> Artifact:
        """Build a new artifact in a directory of its own, and put it here and into the mirror. ``told``: texts by the name of
        the file that they are kept in beside it.

        Raises what ``build`` raises; then nothing is kept. Raises OSError.
        """
        artifact = self._put(_unit(key.graphs), key.id, key.to_json(), inputs, build, told)
        self._copy_to_mirror(artifact, anew=True)
        return artifact

    def renew(self, artifact: Artifact, inputs: Inputs, told: Mapping[str, str]) -> Artifact:
        """The same program, found from now on by other ``inputs`` that lead to it, with other texts. Raises OSError."""
        directory = Path(artifact.directory)

        def link(made: Path) -> None:
            kept = shutil.ignore_patterns(MANIFEST_FILE, *told)
            shutil.copytree(directory, made, ignore=kept, copy_function=os.link, dirs_exist_ok=True)

        return self._put(directory.parent.name, artifact.key_id, artifact.key, inputs, link, told)

    def _put(
        self,
        unit: str,
        key_id: str,
        key: Mapping[str, Any],
        inputs: Inputs,
        build: Callable[[Path], None],
        told: Mapping[str, str],
    ) -> Artifact:
        home = self.root / unit
        home.mkdir(parents=True, exist_ok=True)
        remove_abandoned(home)
        made = temporary_path(home / key_id)
        made.mkdir()
        try:
            build(made)
            for name, text in told.items():
                (made / name).write_text(text, encoding="utf-8")
            files = {str(path.relative_to(made)): _stamp(path) for path in sorted(made.rglob("*")) if path.is_file()}
            manifest = {
                "format_version": FORMAT_VERSION,
                "key_id": key_id,
                "key": dict(key),
                "inputs": _inputs_digest(inputs),
                "files": {name: {"size": size, "sha256": sha256} for name, (size, sha256) in files.items()},
            }
            write_file(made / MANIFEST_FILE, json.dumps(manifest, indent=2, sort_keys=True).encode())
            self._publish(made, home / key_id)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        artifact = _read(str(home / key_id))
        assert artifact is not None
        return artifact

    def explain(self, key: Key) -> tuple[str, ...]:
        """What the nearest artifact that is here has otherwise, of graphs of the same kinds; empty where there is none.
        One of the same key is here if it is not whole: then its damaged files are named."""
        wanted, kinds = key.to_json(), _kinds(key.graphs)
        others = []
        for found in self._all():
            if found.key_id == key.id:
                return tuple(f"{found.directory}/{name}: not as it was made" for name in _damaged(found))
            if _kinds(found.key["graphs"]) == kinds:
                others.append(differences(wanted, found.key))
        return min(others, key=len, default=())

    def _first(self, unit: str, accept: Callable[[Artifact], bool]) -> Artifact | None:
        for name in _names(str(self.root / unit)):
            artifact = _read(str(self.root / unit / name))
            if artifact and accept(artifact) and not _damaged(artifact):
                self._copy_to_mirror(artifact, anew=False)
                return artifact
        for name in _names(join(self._mirror, unit)) if self._mirror else ():
            artifact = _read(join(join(self._mirror or "", unit), name))
            if artifact and accept(artifact) and (fetched := self._fetch(artifact, unit)):
                return fetched
        return None

    def _fetch(self, artifact: Artifact, unit: str) -> Artifact | None:
        """The mirror's artifact copied here; null where its files are not what its manifest says."""
        home = self.root / unit
        home.mkdir(parents=True, exist_ok=True)
        remove_abandoned(home)
        made = temporary_path(home / artifact.key_id)
        made.mkdir()
        try:
            for name, stamp in artifact.files.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    copy_in(join(artifact.directory, name), made / name)
                except ShardingError:
                    return None
                if _stamp(made / name) != stamp:
                    return None
            copy_in(join(artifact.directory, MANIFEST_FILE), made / MANIFEST_FILE)
            self._publish(made, home / artifact.key_id)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return _read(str(home / artifact.key_id))

    def _publish(self, made: Path, final: Path) -> None:
        """Give a complete directory its name, in place of what lies there without being whole."""
        if final.exists():
            shutil.rmtree(final)
        made.rename(final)
        sync_directory(final.parent)

    def _copy_to_mirror(self, artifact: Artifact, anew: bool) -> None:
        """``anew``: in place of what the mirror has, which was not fetched because it is not whole."""
        if not self._mirror:
            return
        unit = Path(artifact.directory).parent.name
        target = join(join(self._mirror, unit), artifact.key_id)
        if not anew and _read(target) is not None:
            return
        for name in (*artifact.files, MANIFEST_FILE):
            folder, _, file = name.rpartition("/")
            open_store(join(target, folder) if folder else target).put(Path(artifact.directory) / name, file)

    def _all(self) -> list[Artifact]:
        units = _names(str(self.root))
        found = [_read(str(self.root / unit / name)) for unit in units for name in _names(str(self.root / unit))]
        return [artifact for artifact in found if artifact]


def _read(directory: str) -> Artifact | None:
    """The artifact in ``directory``; null where there is none, or one of another format."""
    path = join(directory, MANIFEST_FILE)
    try:
        plain = json_object(read_bytes(path, 0, file_size(path)), path)
        if plain["format_version"] != FORMAT_VERSION:
            return None
        files = {name: (file["size"], file["sha256"]) for name, file in plain["files"].items()}
        return Artifact(directory, plain["key_id"], plain["key"], plain["inputs"], files)
    except (ShardingError, KeyError, TypeError, AttributeError):
        return None


def _damaged(artifact: Artifact) -> tuple[str, ...]:
    """Files of a local artifact that are not what its manifest says."""
    directory = Path(artifact.directory)
    return tuple(
        name
        for name, stamp in artifact.files.items()
        if not (directory / name).is_file() or _stamp(directory / name) != stamp
    )


def _names(directory: str) -> tuple[str, ...]:
    try:
        return tuple(name for name in file_names(directory) if not name.startswith("."))
    except ShardingError:
        return ()


def _stamp(path: Path) -> tuple[int, str]:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
    return path.stat().st_size, hasher.hexdigest()


def _kinds(graphs: Iterable[str]) -> set[str]:
    """Of ``prefill_512`` and ``decode``: prefill and decode."""
    return {name.partition("_")[0] for name in graphs}


def _unit(graphs: Mapping[str, str]) -> str:
    ids = list(graphs.values())
    return ids[0] if len(ids) == 1 else digest(ids)


def _inputs_digest(inputs: Inputs) -> str:
    return digest(
        {
            "backend": inputs.backend,
            "graphs": dict(inputs.graphs),
            "versions": dict(inputs.versions),
            "flags": {name: list(flags) for name, flags in inputs.flags.items()},
            "weights": inputs.weights,
            "source": inputs.source,
            "rules": inputs.rules,
        }
    )
