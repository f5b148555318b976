"""What the frozen base makes of a token sequence, its last state, read once: a store on disk, shared by all runs.

A sequence is known by its tokens, after template and truncation; a store by the base's bytes and its dtype. It is a
folder of safetensors files, of which each writer adds its own: written aside, then renamed, so that any number may
write at once and a kill leaves nothing that counts. A file that is damaged or another base's is said and left out, and
what it held is read again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raypref.config import ModelConfig, RunConfig, UserError, registry
from raypref.data.encode import EncodedFederation
from raypref.data.federation import FOLDS
from raypref.models.identity import base_digest
from raypref.models.selector import Selector, load_selector
from raypref.tools import checkpoint, console

if TYPE_CHECKING:
    from typing import IO

FOLDER = "RAYPREF_FEATURES"
"""Environment variable: the folder of all stores, where `model.feature_cache` does not name one."""
DEFAULT = Path("~/.cache/raypref/features")
SECONDS = 30.0
"""What has been read is written at least as often, so that an interruption loses no more."""
TOGETHER, STEP = 8, 16
"""Of a pass on a CPU: sequences in it, and what its length is a multiple of."""
WIDTH = 16
"""Bytes by which a sequence is known."""

Key = bytes
Tokens = np.ndarray
"""int32 [T]"""


def key_of(tokens: Tokens) -> Key:
    """What a sequence is known by."""
    return hashlib.blake2b(np.ascontiguousarray(tokens, dtype=np.int32).tobytes(), digest_size=WIDTH).digest()


def root(config: ModelConfig) -> Path:
    """The folder of what is kept for all runs."""
    return Path(config.feature_cache or os.environ.get(FOLDER) or DEFAULT).expanduser().absolute()


class Place(NamedTuple):
    """Where a state lies."""

    file: Path
    row: int


class Store:
    """The states of one base in one dtype, by the sequences' keys."""

    def __init__(self, config: ModelConfig) -> None:
        """Opens it, also where it is not there yet. Raises `UserError` where the base has no weights to tell it by."""
        self.identity = f"{base_digest(config.base)}-{config.dtype}"
        self.folder = root(config) / self.identity
        self._places: dict[Key, Place] = {}
        self._opened: set[Path] = set()
        self._states: dict[Path, Tensor | None] = {}
        """Memory-mapped, of the files that something was asked of; None: damaged."""
        self.refresh()

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))

    def refresh(self) -> None:
        """Take in what others have written since."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if path not in self._opened:
                self._opened.add(path)
                with self._doubting(path), _opened(path) as file:
                    if (file.metadata() or {}).get("store") != self.identity:
                        raise ValueError(f"it is not of this base in this dtype ({self.identity})")
                    keys = file.get_tensor("keys").numpy()
                    if keys.shape != (file.get_slice("states").get_shape()[0], WIDTH):
                        raise ValueError("it has not as many keys as states")
                    self._places |= {key.tobytes(): Place(path, row) for row, key in enumerate(keys)}

    def lacking(self, keys: Iterable[Key]) -> set[Key]:
        """Those that it has not, or not whole any more."""
        keys = set(keys)
        for path in {self._places[key].file for key in keys if key in self._places}:
            if self._whole(path) is None:
                self._places = {key: place for key, place in self._places.items() if place.file != path}
        return {key for key in keys if key not in self._places}

    def get(self, keys: Sequence[Key]) -> Tensor:
        """The states [m, H] float32 of m sequences, none of which is `lacking`."""
        by_file: dict[Path, list[tuple[int, int]]] = {}
        for i, key in enumerate(keys):
            file, row = self._places[key]
            by_file.setdefault(file, []).append((i, row))
        parts = []
        for path, wanted in by_file.items():
            states = self._whole(path)
            assert states is not None
            parts.append((torch.tensor([i for i, _ in wanted]), states[[row for _, row in wanted]].float()))
        out = torch.empty(len(keys), parts[0][1].shape[1] if parts else 0)
        for at, states in parts:
            out[at] = states
        return out

    def add(self, keys: Sequence[Key], states: Tensor) -> None:
        """Write the states [m, H] of m sequences, in a file of their own; they are on the disk when this returns."""
        from safetensors.torch import save

        states = states.cpu().contiguous()
        packed = torch.from_numpy(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, WIDTH).copy())
        about = {"store": self.identity, "sum": _sum(packed, states)}
        data = save({"keys": packed, "states": states}, metadata=about)
        # By what it holds, so that a damaged file of the same is put right.
        path = self.folder / f"{hashlib.blake2b(data, digest_size=8).hexdigest()}.safetensors"
        try:
            checkpoint.write_bytes(path, data)
        except OSError as error:
            raise UserError(f"features cannot be kept in {self.folder} ({error.strerror}); {_ELSEWHERE}") from error
        self._opened.discard(path)
        self._states.pop(path, None)
        self.refresh()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One at a time reads what is missing, so that nothing is read twice; the lock ends with the process."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.folder / ".lock", "w")  # noqa: SIM115 - closed below
        except OSError as error:
            raise UserError(f"features cannot be kept in {self.folder} ({error.strerror}); {_ELSEWHERE}") from error
        with lock:
            if not checkpoint.claim(lock):
                console.note(f"features: waiting for another process that reads into {self.folder}")
                _wait(lock)
            self.refresh()
            yield

    def _whole(self, path: Path) -> Tensor | None:
        """A file's states, memory-mapped; None where they are not those that were written."""
        if path not in self._states:
            self._states[path] = None
            with self._doubting(path), _opened(path) as file:
                states = file.get_tensor("states")
                if _sum(file.get_tensor("keys"), states) != file.metadata()["sum"]:
                    raise ValueError("its checksum is wrong")
                self._states[path] = states
        return self._states[path]

    @contextlib.contextmanager
    def _doubting(self, path: Path) -> Iterator[None]:
        """A line, and no error, where a file is not what a writer of this store has left."""
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            why = str(error).splitlines()[0]
            console.warn(f"features: {path} is left out, and what it held is read again: {why}; remove it")


_ELSEWHERE = f"give another --model.feature-cache (or {FOLDER})"


def _opened(path: Path) -> Any:
    from safetensors import safe_open

    return safe_open(path, framework="pt")


def _sum(keys: Tensor, states: Tensor) -> str:
    digest = hashlib.blake2b(keys.numpy().data, digest_size=WIDTH)
    digest.update(states.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _wait(lock: IO[Any]) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)


class Features:
    """What a worker's objective looks up: one table of the distinct sequences, filled as they are asked for."""

    def __init__(self, selector: Selector, config: RunConfig) -> None:
        self.selector, self.config = selector, config
        self.table = torch.zeros(0, selector.model.config.hidden_size, device=selector.device)
        """float32 [distinct, H]"""
        self._rows: dict[Key, int] = {}
        self._store: Store | None = None

    def places(self, sequences: Iterable[Tokens]) -> np.ndarray:
        """int64 [m] each one's row of `table`. What neither it nor the store has is read, and kept."""
        keys = []
        new: dict[Key, Tokens] = {}
        for tokens in sequences:
            keys.append(key_of(tokens))
            if keys[-1] not in self._rows:
                new[keys[-1]] = tokens
        if new:
            states = self._kept(new)
            self._rows |= {key: len(self.table) + i for i, key in enumerate(new)}
            self.table = torch.cat([self.table, states.to(self.table)])
        return np.array([self._rows[key] for key in keys], dtype=np.int64)

    def states(self, sequences: Iterable[Tokens], keep: bool = False) -> Tensor:
        """float32 [m, H] beside the table: of sequences that are looked at once. keep: those of a run's data, for the
        store; else nothing of them is written."""
        keys, distinct = [], dict[Key, Tokens]()
        for tokens in sequences:
            keys.append(key_of(tokens))
            distinct[keys[-1]] = tokens
        if keep:
            states, order = self._kept(distinct), list(distinct)
        else:
            order, rows = zip(*self._read(distinct), strict=True)
            states = torch.stack(rows)
        at = {key: i for i, key in enumerate(order)}
        return states.to(self.table)[[at[key] for key in keys]]

    def _kept(self, wanted: Mapping[Key, Tokens]) -> Tensor:
        """[distinct, H] in their order."""
        self._store = store = self._store or Store(self.config.model)
        if store.lacking(wanted):
            with store.writing():
                lacking = store.lacking(wanted)
                write(store, self._read({key: tokens for key, tokens in wanted.items() if key in lacking}))
        return store.get(list(wanted))

    def _read(self, wanted: Mapping[Key, Tokens]) -> Iterator[tuple[Key, Tensor]]:
        return read(self.selector, wanted, self.config.clients.eval_batch)


def read(selector: Selector, wanted: Mapping[Key, Tokens], batch: int) -> Iterator[tuple[Key, Tensor]]:
    """Each sequence's last state [H] in the base's own dtype, the longest first.

    Passes have shapes that depend on a sequence's own length alone, filled up with padding: in them a CPU gives a
    sequence the same bits whatever is read beside it, now or by an earlier run. batch: sequences in one on a GPU.
    """
    lengths = {key: -(-len(tokens) // STEP) * STEP for key, tokens in wanted.items()}
    order = sorted(wanted, key=lambda key: (-lengths[key], key))
    size = TOGETHER if selector.device == "cpu" else batch
    for length, group in itertools.groupby(order, key=lengths.__getitem__):
        keys = list(group)
        for part in (keys[start : start + size] for start in range(0, len(keys), size)):
            ids = np.full((size, length), selector.pad, dtype=np.int64)
            last = np.zeros((size, 1), dtype=np.int64)
            for i, key in enumerate(part):
                ids[i, : len(wanted[key])] = wanted[key]
                last[i] = len(wanted[key]) - 1
            with torch.no_grad():
                read = (torch.from_numpy(array)[None].to(selector.device) for array in (ids, last))
                states = selector.states(None, *read)[0, :, 0]
            for i, key in enumerate(part):
                yield key, states[i].clone()


def write(store: Store, states: Iterable[tuple[Key, Tensor]], progress: Any = None) -> None:
    """Take states as they come into the store, every half a minute."""
    waiting: dict[Key, Tensor] = {}
    last = time.monotonic()
    for key, state in states:
        waiting[key] = state.cpu()
        if progress:
            progress.advance()
        if time.monotonic() - last > SECONDS:
            store.add(list(waiting), torch.stack(list(waiting.values())))
            waiting, last = {}, time.monotonic()
    if waiting:
        store.add(list(waiting), torch.stack(list(waiting.values())))


def fill_for(config: RunConfig, data: EncodedFederation, pad: int, bar: Any = None) -> Filled | None:
    """`fill` with all that the run's objective looks up of these data; None: nothing."""
    folds = [client.fold(name) for client in data.clients for name in FOLDS]
    sequences = registry.objective(config.objective).read_once(config, folds)
    first = next(sequences, None)
    return None if first is None else fill(config, itertools.chain([first], sequences), pad, bar)


class Filled(NamedTuple):
    """What `fill` did."""

    distinct: int
    """Sequences, each counted once."""
    read: int
    """Of them, those that were not there before."""
    nbytes: int
    """Of the whole store, on the disk."""
    folder: Path

    def __str__(self) -> str:
        size = f"{self.nbytes / 1e6:,.1f} MB in {self.folder}"
        return f"features: {self.distinct:,} texts, {self.read:,} of them read now; {size}"


def fill(config: RunConfig, sequences: Iterable[Tokens], pad: int, bar: Any = None) -> Filled:
    """Have all these in the store: the base is loaded, and says so, only where one is missing.

    bar: makes a progress bar (a context manager with `advance`) from (total, label, done).
    """
    store = Store(config.model)
    wanted = {key_of(tokens): tokens for tokens in sequences}
    lacking = store.lacking(wanted)
    if lacking:
        with store.writing(), contextlib.ExitStack() as stack:
            lacking = store.lacking(lacking)
            if lacking:
                console.say(f"features: reading {len(lacking):,} of {len(wanted):,} texts through the base")
                progress = stack.enter_context(bar(len(lacking), "features", 0)) if bar else None
                torch.set_num_threads(config.clients.threads)
                device = "cuda" if config.clients.gpus_per_actor > 0 and torch.cuda.is_available() else "cpu"
                selector = load_selector(config.model, (), pad, device)
                new = {key: wanted[key] for key in lacking}
                write(store, read(selector, new, config.clients.eval_batch), progress)
    return Filled(len(wanted), len(lacking), store.nbytes, store.folder)
