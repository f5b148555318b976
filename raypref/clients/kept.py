"""What clients keep between rounds: arrays by client and name, for those clients alone that have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Arrays = Mapping[str, np.ndarray]
"""What one client keeps, by name. Along the first axis clients may differ in length, along no other."""


@dataclass(frozen=True)
class Kept:
    """What each client keeps. It stays at the clients: the server holds it only so that a run can be resumed, and it is
    no communication."""

    by_client: Mapping[int, Arrays] = field(default_factory=dict)

    def of(self, cohort: Sequence[int] | np.ndarray) -> list[Arrays]:
        """What each of these clients keeps, {} for those that have nothing yet."""
        return [self.by_client.get(int(c), {}) for c in cohort]

    def updated(self, cohort: Sequence[int] | np.ndarray, values: Sequence[Arrays]) -> Kept:
        """The same with what these clients keep now; one that keeps nothing ({}) is left as it was."""
        new = {int(c): arrays for c, arrays in zip(cohort, values, strict=True) if arrays}
        return Kept({**self.by_client, **new}) if new else self

    def tensors(self) -> dict[str, Tensor]:
        """As `from_tensors` takes it: of each name the clients, ascending, how long theirs are, and all values."""
        out = {}
        for name in sorted({name for arrays in self.by_client.values() for name in arrays}):
            clients = sorted(c for c, arrays in self.by_client.items() if name in arrays)
            values = [self.by_client[c][name] for c in clients]
            out[f"{name}/clients"] = torch.tensor(clients, dtype=torch.int64)
            out[f"{name}/lengths"] = torch.tensor([len(v) for v in values], dtype=torch.int64)
            out[f"{name}/values"] = torch.from_numpy(np.concatenate(values))
        return out

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Kept:
        """Inverse of `tensors`."""
        by_client: dict[int, dict[str, np.ndarray]] = {}
        for name in {key.rpartition("/")[0] for key in tensors}:
            lengths = tensors[f"{name}/lengths"].tolist()
            parts = np.split(tensors[f"{name}/values"].numpy(), np.cumsum(lengths)[:-1])
            for c, values in zip(tensors[f"{name}/clients"].tolist(), parts, strict=True):
                by_client.setdefault(c, {})[name] = values
        return cls(by_client)
