"""Randomness by coordinates: a stream is named by what it is for, never by when it is drawn.

So a repeat, a resume and any number of actors draw the same numbers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, purpose: str, coordinates: tuple[int, ...]) -> int:
    text = "/".join([str(int(seed)), purpose, *(str(int(c)) for c in coordinates)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """A NumPy generator for (seed, purpose, coordinates), such as `stream(0, "cohort", round)`."""
    return np.random.Generator(np.random.Philox(_entropy(seed, purpose, coordinates)))


def torch_stream(seed: int, purpose: str, *coordinates: int, device: str = "cpu") -> torch.Generator:
    """The same for torch; on a GPU the numbers are that device's own."""
    import torch

    return torch.Generator(device=device).manual_seed(_entropy(seed, purpose, coordinates) >> 1)
