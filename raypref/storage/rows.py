"""The rows that a finished run leaves: what clients start from, and what each has become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raypref.tools import checkpoint
from raypref.tools.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.layout import Layout

At = Literal["personalized", "initialization"]
"""After a client's local steps, or before any."""


def client_row(folder: Path, config: RunConfig, layout: Layout, ids: list[str], c: int, at: At) -> Tensor:
    """[D] client c's row, from the run's folder or from its adapters. Raises `UserError` where it holds neither."""
    from raypref.models.peft_io import import_peft
    from raypref.storage.results import safe_name

    if at == "initialization" and (folder / "initialization.safetensors").exists():
        rows = checkpoint.load(folder / "initialization.safetensors")[0]["rows"]
        return rows if rows.dim() == 1 else rows[c]
    for file in sorted((folder / "clients").glob("*.safetensors")) if at == "personalized" else ():
        part = checkpoint.load(file)[0]
        where = (part["clients"] == c).nonzero()
        if len(where):
            return part["rows"][int(where[0, 0])]
    place = folder / "adapters" / at / safe_name(ids[c])
    if at == "initialization" and not place.is_dir():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"{folder} holds no adapters; run it again without --no-adapters, or name its own folder")
    return import_peft(place, layout, config.model)


def check_row(row: Tensor, layout: Layout, folder: Path, whose: str) -> Tensor:
    """The row itself; `UserError` where it cannot judge: it has another width than the configuration says, or is not
    finite."""
    import torch

    if row.shape[-1] != layout.width:
        raise UserError(
            f"{folder} has {row.shape[-1]} parameters for {whose}, its config.json asks for {layout.width}: "
            "one of the two was changed; put it back, or run it again"
        )
    if not torch.isfinite(row).all():
        raise UserError(
            f"what {whose} had in {folder} is not finite, its training diverged: run it again with a lower "
            "learning rate"
        )
    return row


def client_z(result: dict[str, Any], c: int, at: At, run: str) -> Tensor:
    """[d] the mean of client c's posterior. Raises `UserError` where an earlier version did not keep it."""
    import torch

    name = "personalized_mu" if at == "personalized" else "mu"
    if name not in result["probes"]:
        raise UserError(f"{run} is of an earlier version, which did not keep its clients' z; run it again")
    return torch.tensor(result["probes"][name][c])
