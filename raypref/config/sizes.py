"""What a run of somebody's own data is sized to where they did not say: the defaults are those of the embedded
benchmark, whose 40 clients hold some 5,000 training pairs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from raypref.config.tree import RunConfig
from raypref.config.values import flatten, to_dict

PASSES = 20
"""Times that the rounds go through all training pairs, at most. More is learned by heart, and takes its time."""


def sizes(config: RunConfig, people: int, pairs: int, given: Collection[str] = ()) -> dict[str, Any]:
    """What to override of a configuration: dotted name -> value, never above the configured one. Of what was `given`
    nothing; and what goes with it (rounds and the interval between two reassignments) stays as it is, too.

    people: those who take part in rounds. pairs: their training pairs, together. Rounds and interval shrink alike, so
    that groups are looked for as often as before; a group is of two people at least.
    """
    flat = flatten(to_dict(config))
    most = {"federation.cohort": people, "experts.K": max(people // 2, min(people, 2))}
    rounds, interval = flat["federation.rounds"], flat["experts.T"]
    if not {"federation.rounds", "experts.T"} & set(given) and rounds % interval == 0:
        batch = min(flat["optim.batch_size"], pairs / people)
        a_round = min(flat["federation.cohort"], people) * flat["federation.local_steps"] * batch
        most["experts.T"] = max(1, round(PASSES * pairs / a_round * interval / rounds))
        most["federation.rounds"] = rounds // interval * most["experts.T"]
    return {name: value for name, value in most.items() if value < flat[name] and name not in given}
