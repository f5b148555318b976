"""The selectors that a finished run leaves, asked about any pairs: by `raypref.score`, and as a model of MLflow.

The model holds the rows of everybody who took part and the name of their base: no weights of a base, nobody's texts.
`mlflow.pyfunc.load_model` calls `_load_pyfunc` wherever raypref is installed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from scipy.special import expit

from raypref.clients.worker import Worker
from raypref.config import UserError, read_config, registry
from raypref.data.encode import concatenate, encode_each
from raypref.data.federation import Pair
from raypref.data.forms.pairs import extract
from raypref.data.rows import Unusable
from raypref.models.identity import check_base
from raypref.models.selector import load_tokenizer, pad_id
from raypref.storage import locate, people, rows, tracking
from raypref.tools import checkpoint

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "selector"
"""What the model is called in MLflow."""
INPUTS = ("client", "prompt", "first", "second")
OUTPUTS = {"probability": "double", "margin": "double", "note": "string"}
"""Of a line: that the client prefers the first response, σ(margin); the margin of `raypref.score`; what of its texts
was lost, or why there is no margin."""
PARAMETERS = {"at": "personalized"}
"""Of a request; `initialization`: before any local step."""
OPTIONS = {"base": "", "people": ""}
"""Of loading (`model_config`): where the base is, if not where the run had it; the folder of the run, whose people
(`raypref.onboard`) are then known, too."""


class Selectors:
    """A finished run and its base, loaded once: what its clients prefer, and the people made known to it."""

    def __init__(self, folder: Path, base: str = "", people_of: Path | None = None) -> None:
        """folder: of the run, or of its model. people_of: the run that knows people, where it is another folder.

        Raises `UserError` where the base is not there, or is another than the run was trained on."""
        self.folder, self.people_of = folder, people_of or folder
        self.result = checkpoint.read_json(folder / "result.json", "clients")
        config = read_config(folder)
        gpus = config.clients.gpus_per_actor if torch.cuda.is_available() else 0.0
        self.config = replace(
            config,
            model=replace(config.model, base=base or config.model.base),
            clients=replace(config.clients, gpus_per_actor=gpus),
        )
        self.objective = registry.objective(config.objective)
        check_base(self.config.model.base, self.result.get("base", ""), str(folder))

    def check(self, whose: str) -> None:
        """`UserError` where the run knows nobody of this name."""
        if not people.find(self.people_of, whose):
            known = [*self.result["clients"], *people.names(self.people_of)]
            locate.position(whose, known, "a pair is scored by its selector")

    def margins(
        self, whose: str, pairs: Sequence[Pair], at: rows.At = "personalized"
    ) -> list[tuple[float | None, str]]:
        """The margin of each pair by one's row (and z), above 0 where the first response is preferred, averaged over
        both orders, and what of its text was lost; None and why, where it has no margin."""
        self.check(whose)
        row, z = self._of(whose, at)
        rows.check_row(row, self._worker.layout, self.folder, whose)
        fits = encode_each(pairs, self._tokenizer, self.objective.encoding(self.config), self.config.data.max_length)
        usable = [fit.fold for fit in fits if fit.fold]
        found = self._worker.margins(row[None], concatenate(usable), z)[0].mean(-1).tolist() if usable else []
        margins = iter(found)
        return [(next(margins) if fit.fold else None, fit.why) for fit in fits]

    def predict(self, frame: DataFrame, params: Mapping[str, Any] | None = None) -> DataFrame:
        """A line of `OUTPUTS` for each line of `INPUTS`, in their order; nan, and a note why, where there is no margin.
        Raises `UserError` where the run knows nobody of a name."""
        import pandas

        at = {**PARAMETERS, **(params or {})}["at"]
        if at not in get_args(rows.At):
            raise UserError(f"at is {at!r}; give {' or '.join(get_args(rows.At))}")
        lines: dict[int, tuple[float, float, str]] = {}
        asked: dict[str, list[tuple[int, Pair]]] = {}
        for i, (client, *texts) in enumerate(frame[list(INPUTS)].itertuples(index=False, name=None)):
            try:
                asked.setdefault(client, []).append((i, extract(*texts)))
            except Unusable as unusable:
                lines[i] = (math.nan, math.nan, str(unusable))
        for client, places in asked.items():
            found = self.margins(client, [pair for _, pair in places], at)
            for (i, _), (margin, why) in zip(places, found, strict=True):
                m = math.nan if margin is None else margin
                lines[i] = (float(expit(m)), m, why)
        return pandas.DataFrame([lines[i] for i in range(len(frame))], index=frame.index, columns=list(OUTPUTS))

    def _of(self, whose: str, at: rows.At) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[D] the row that judges for somebody, and their z [d] where there is one; a person has only one of each."""
        if person := people.find(self.people_of, whose):
            return person.row, person.z
        c = self.result["clients"].index(whose)
        z = None
        if self.objective.latent_width(self.config):
            z = rows.client_z(self.result, c, at, str(self.folder))
        return rows.client_row(self.folder, self.config, self._worker.layout, self.result["clients"], c, at), z

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.config.model.base)

    @functools.cached_property
    def _worker(self) -> Worker:
        choice_ids = self.objective.choice_ids(self._tokenizer, self.config)
        return Worker(self.config, {}, choice_ids, pad_id(self._tokenizer))


def write(run: Path, folder: Path) -> None:
    """Write what `Selectors` reads of a finished run into a folder of the same shape."""
    result = checkpoint.read_json(run / "result.json", "clients")
    probes = {name: result["probes"][name] for name in ("mu", "personalized_mu") if name in result.get("probes", {})}
    kept = {"clients": result["clients"], "base": result.get("base", ""), "probes": probes}
    checkpoint.write_json(folder / "result.json", kept)
    checkpoint.write_json(folder / "config.json", checkpoint.read_json(run / "config.json"))
    for file in (run / "initialization.safetensors", *sorted((run / "clients").glob("*.safetensors"))):
        tensors = {name: t for name, t in checkpoint.load(file)[0].items() if name in ("clients", "rows")}
        checkpoint.save(folder / file.relative_to(run), tensors, {})


def model(run: Path, clients: Sequence[str]) -> tracking.Model:
    """The model that a finished run is in MLflow, with a pair to try it on that nobody has said anything of."""
    texts = ("What is rain?", "Water that falls from clouds.", "Rain is a kind of weather.")
    return tracking.Model(
        NAME,
        loader=__name__,
        write=functools.partial(write, run),
        example=dict(zip(INPUTS, (clients[0], *texts), strict=True)),
        outputs=OUTPUTS,
        parameters=PARAMETERS,
        options=OPTIONS,
    )


def _load_pyfunc(path: str, model_config: Mapping[str, str] | None = None) -> Selectors:
    """What MLflow calls to load the model. Raises `UserError` where its base is not there."""
    options = {**OPTIONS, **(model_config or {})}
    try:
        selectors = Selectors(Path(path), options["base"], Path(options["people"]) if options["people"] else None)
        selectors._worker  # noqa: B018  what is loaded answers at once
    except UserError as error:
        raise UserError(f"{error}; load_model takes model_config={{'base': …}}, a folder or a hub id") from error
    return selectors
