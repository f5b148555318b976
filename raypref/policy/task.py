"""What the server trains a policy from: prompts, frozen selectors, and the z that clients have sent. No label, no pair
and no response of a person is among it (S1, Algorithm 1: "does not access any personal preference labels")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raypref.algorithms.base import Prior, State
from raypref.clients.seen import unseen
from raypref.config import RunConfig, UserError, registry
from raypref.data.federation import Federation
from raypref.data.load import load
from raypref.models.identity import check_base
from raypref.models.selector import load_tokenizer, pad_id
from raypref.objectives.base import row_layout
from raypref.storage.people import Person
from raypref.storage.results import saved_state
from raypref.storage.rows import check_row
from raypref.tools import checkpoint
from raypref.tools.rng import stream

FOLLOWED = "take fedavg, fedgd, fedbiscuit, fedvpl or fedvpa_gp"


@dataclass(frozen=True)
class Prompts:
    """P prompts, and the client of each."""

    texts: tuple[str, ...]
    client: np.ndarray
    """int64 [P] position of the client among all C."""


@dataclass(frozen=True)
class Task:
    """Everything that stage 2 trains from, as plain strings and arrays, which can be sent to other processes."""

    config: RunConfig
    choice_ids: tuple[int, ...]
    pad: int
    rows: np.ndarray
    """float32 [U, D] what stage 1 left: one variational selector, U voting ones, or with FedDPO the policy itself."""
    train: Prompts
    """Of the training pairs of clients that took part."""
    test: Prompts
    """What judges are shown answers to: test prompts of every group, evenly over its clients."""
    ids: tuple[str, ...]
    """[C] client ids."""
    base: str
    """The base's identity (`raypref.models.identity`)."""
    groups: tuple[str, ...]
    """[C] each client's true group; empty where unknown. For the judges' sections only."""
    unseen: frozenset[int]
    """Clients that took no part in stage 1."""
    z: np.ndarray | None = None
    """float32 [C, d] the mean of each client's own posterior, as the client sent it; None without a latent."""
    mixture: Prior | None = field(default=None)
    """What z is drawn from in training; None: the clients' z are taken."""

    @property
    def d(self) -> int:
        return 0 if self.z is None else int(self.z.shape[1])

    @property
    def trains(self) -> bool:
        """Whether there is anything left to train: FedDPO's clients have trained the policy already."""
        return not registry.objective(self.config.objective).is_policy


def gather(folder: Path, config: RunConfig, person: Person | None = None) -> Task:
    """Collect what stage 2 trains from after the finished stage-1 run in `folder`.

    config: the run's own, with stage 2's sections `dpo` and `rlhf`. person: for whom alone the policy is, by their own
    selector and z; the prompts are the run's. Raises `UserError` where stage 2 cannot follow it.
    """
    result = checkpoint.read_json(folder / "result.json", "rounds", "clients")
    if not result["rounds"] and not person:
        raise UserError(f"{config.algorithm} trains nothing that clients share; {FOLLOWED}")
    base = check_base(config.model.base, result.get("base", ""), str(folder))
    tokenizer = load_tokenizer(config.model.base)
    federation = load(config.data, config.seed)
    if list(federation.ids) != result["clients"]:
        raise UserError(f"the data changed since {folder} was made; run its stage 1 again")
    away = frozenset(unseen(config, federation.groups, federation.group_of).tolist())
    if person:
        return for_person(folder, config, person, federation, away, base)
    state = saved_state(folder, config)
    return Task(
        config=config,
        choice_ids=registry.objective(config.objective).choice_ids(tokenizer, config),
        pad=pad_id(tokenizer),
        rows=selectors(folder, config, state),
        train=prompts_of(federation, "train", [c for c in range(len(federation.ids)) if c not in away]),
        test=chosen_tests(federation, config, away),
        ids=federation.ids,
        base=base,
        groups=tuple(client.group for client in federation.clients),
        unseen=away,
        z=posteriors(folder, result, config),
        mixture=mixture(config, state),
    )


def for_person(
    folder: Path, config: RunConfig, person: Person, federation: Federation, away: frozenset[int], base: str
) -> Task:
    """What a policy for one person alone is trained from: their selector, and the prompts of the run."""
    if config.rlhf.z == "prior":
        raise UserError("--rlhf.z prior draws other people's z, and the policy is for one; leave it at clients")
    tokenizer = load_tokenizer(config.model.base)
    seen = [c for c in range(len(federation.ids)) if c not in away]

    def theirs(of_clients: Prompts) -> Prompts:
        return prompts([(text, 0) for text in dict.fromkeys(of_clients.texts)])

    return Task(
        config=config,
        choice_ids=registry.objective(config.objective).choice_ids(tokenizer, config),
        pad=pad_id(tokenizer),
        rows=check_row(person.row, row_layout(config), folder, person.name)[None].numpy(),
        train=theirs(prompts_of(federation, "train", seen)),
        test=theirs(chosen_tests(federation, config, away)),
        ids=(person.name,),
        base=base,
        groups=("",),
        unseen=frozenset({0}),
        z=None if person.z is None else person.z[None].numpy(),
    )


def selectors(folder: Path, config: RunConfig, state: State) -> np.ndarray:
    """[U, D] the selectors that label: the method's ensemble, or else the initialization that all clients share."""
    rows = registry.algorithm(config.algorithm).selectors(state)
    if rows is None:
        rows = torch.atleast_2d(checkpoint.load(folder / "initialization.safetensors")[0]["rows"])
        if len(rows) > 1:
            raise UserError(
                f"{config.algorithm} leaves a model a client, and stage 2 needs one selector, or FedBiscuit's "
                f"ensemble; {FOLLOWED}"
            )
    if rows.shape[1] != row_layout(config).width:
        raise UserError(f"the rows in {folder} do not fit model.base={config.model.base!r}; was the base changed?")
    return rows.numpy()


def posteriors(folder: Path, result: dict[str, Any], config: RunConfig) -> np.ndarray | None:
    """[C, d] the posterior mean that each client, seen or unseen, has sent before any local step."""
    if not registry.objective(config.objective).latent_width(config):
        return None
    if "mu" not in result["probes"]:
        raise UserError(f"{folder} is of an earlier version, which did not keep its clients' z; run its stage 1 again")
    return np.asarray(result["probes"]["mu"], dtype=np.float32)


def mixture(config: RunConfig, state: State) -> Prior | None:
    """The method's prior of z where `rlhf.z` is `prior`. Raises `UserError` where the method has none."""
    if config.rlhf.z != "prior":
        return None
    prior = registry.algorithm(config.algorithm).prior(state, config)
    if prior is None:
        raise UserError(f"--rlhf.z prior needs a mixture prior, which {config.algorithm} has not; take fedvpa_gp")
    return prior  # type: ignore[no-any-return]


def prompts_of(federation: Federation, fold: str, clients: Sequence[int]) -> Prompts:
    """The prompts of these clients' fold, each once a client, in their order."""
    pairs = [(p.prompt, c) for c in clients for p in federation.clients[c].fold(fold)]
    return prompts(list(dict.fromkeys(pairs)))


def prompts(owned: Sequence[tuple[str, int]]) -> Prompts:
    """Make `Prompts` of (text, client) pairs."""
    return Prompts(tuple(text for text, _ in owned), np.array([c for _, c in owned], dtype=np.int64))


def chosen_tests(federation: Federation, config: RunConfig, away: frozenset[int]) -> Prompts:
    """The prompts that judges are shown answers to: `rlhf.samples` of each group, of seen and of unseen clients.

    They are drawn by the seed, evenly over a group's clients: one of each in turn.
    """
    sections: dict[tuple[str, bool], list[int]] = {}
    for c, client in enumerate(federation.clients):
        sections.setdefault((client.group, c in away), []).append(c)
    chosen: list[tuple[str, int]] = []
    for clients in sections.values():
        piles = []
        for c in clients:
            texts = prompts_of(federation, "test", [c]).texts
            piles.append([(texts[i], c) for i in stream(config.seed, "rlhf test", c).permutation(len(texts))])
        dealt = [pile[i] for i in range(max(map(len, piles))) for pile in piles if i < len(pile)]
        chosen += dealt[: config.rlhf.samples or None]
    return prompts(chosen)
