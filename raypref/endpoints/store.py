"""The one store of paid answers: a file of JSON lines that stays readable whatever ends a command."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from raypref.config import UserError
from raypref.endpoints.client import Answer, text_of
from raypref.tools.checkpoint import claim

Settings = Mapping[str, Any] | None
Fields = tuple[str, ...]
Key = tuple[Any, ...]
"""Identifies an answer: one value for each field of the store's keys."""


class Store:
    """Answers by key, in a file with a line each, for any number of threads.

    A store whose answers have `settings` in common begins with a line of them, and one process at a time writes it.
    Without settings the keys say all, and any number of processes share it, as a line is one write.
    """

    def __init__(self, path: Path, fields: Fields, flag: str, settings: Settings = None, write: bool = True) -> None:
        """fields: of a key. flag: the option that gives another file, for messages. write: False changes nothing.

        Raises `UserError` for a file that cannot be used, that another process writes, or of other settings.
        """
        self.path = path
        self.answers: dict[Key, Answer] = {}
        self.dropped = 0
        """Lines without an answer, such as one that a kill has cut."""
        self._fields, self._alone = fields, settings is not None
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        try:
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
                if self._alone and not claim(self._file):
                    raise UserError(f"{path}: another process is writing it; wait, or give another {flag}")
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            how = "written" if write else "read"
            raise UserError(f"{path}: cannot be {how} ({error.strerror}); give another {flag}") from error
        complete = content.rfind(b"\n") + 1  # bytes of complete lines
        begun = self._read(content[:complete])
        self.dropped += len(content) > complete
        if self.answers and settings is not None and begun != settings:
            old = begun or {}
            changed = [f"{key} {old.get(key)!r}, now {new!r}" for key, new in settings.items() if old.get(key) != new]
            raise UserError(f"{path} was begun with {'; '.join(changed)}; set it back, or give another {flag}")
        if self._file and len(content) > complete:
            if self._alone:
                self._file.truncate(complete)
            else:  # another process may have added to it since
                self._file.write(b"\n")
        if self._file and settings is not None and begun != settings:
            self._write({"settings": dict(settings)})

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            if self._alone and not self.answers:
                self.path.unlink()
            self._file.close()

    def _read(self, lines: bytes) -> Settings:
        """Add the answers of these lines; returns the settings, if there are any."""
        begun = None
        for line in lines.splitlines():
            try:
                entry = json.loads(line)
                if isinstance(entry, list):  # how judges' answers were kept at first
                    entry = dict(zip((*self._fields, "text", "tokens_in", "tokens_out"), entry, strict=True))
                if "settings" in entry:
                    begun = entry["settings"]
                    continue
                key = tuple(entry[name] for name in self._fields)
                finish, read, written = entry.get("finish", ""), entry["tokens_in"], entry["tokens_out"]
                self.answers[key] = Answer(text_of(entry["text"]), finish, read, written)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.dropped += bool(line)
        return begun

    def add(self, key: Key, answer: Answer) -> None:
        """Store an answer; it is on the disk when this returns."""
        with self._lock:
            self._write({**dict(zip(self._fields, key, strict=True)), **vars(answer)})
            self.answers[key] = answer

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry).encode() + b"\n")
        os.fsync(self._file.fileno())
