"""`--dry-run`: what the trials of a sweep would take."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import torch

from raypref.clients import actors
from raypref.config import registry
from raypref.config.spaces import usable_gib
from raypref.experiment import forecast, memory
from raypref.experiment.sweeping.trials import Trial, in_one_process, prepared
from raypref.tools import console


def dry_run(trials: Sequence[Trial], card: str = "") -> int:
    """Print what the trials would take, for `--dry-run`; card: that they were fitted to."""
    missing = [trial for trial in trials if not trial.finished]
    configurations = len({dataclasses.replace(trial.config, seed=0).key for trial in trials})
    console.say(
        f"trials: {len(trials)}, of {configurations} configurations; finished already: {len(trials) - len(missing)}; "
        f"to run: {len(missing)}"
    )
    if not missing:
        return 0
    machine = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    costs = forecast.Costs()
    runs, requests, on_card = [], [], []
    for trial, inputs in prepared(missing):
        if not runs and (machine["GPU"] or not trial.config.clients.gpus_per_actor):
            costs = forecast.measure(inputs)
        runs.append(forecast.predict(inputs, costs))
        requests.append(actors.bundles(trial.config, len(inputs.sizes)))
        if trial.config.clients.gpus_per_actor:
            on_card.append((forecast.actor_memory(inputs, runs[-1]), trial.config))

    client_actors = [len(bundles) - 1 for bundles in requests]
    share = ", ".join(f"{n:g} {kind}" for kind, n in requests[0][-1].items())
    fitting = min(actors.at_once(bundles, [machine], len(missing)) for bundles in requests)
    console.say(
        f"each asks for {requests[0][0]['CPU']:g} CPU for its server and {share} for each client actor "
        f"({span(client_actors, '{:.0f}')}); {fitting} at a time fit on this machine "
        f"({machine['CPU']:g} CPU, {machine['GPU']:g} GPU)"
    )
    up, down = ([getattr(run.used, name) / 1e6 for run in runs] for name in ("bytes_up", "bytes_down"))
    rounds = [max(run.rounds, 1) for run in runs]
    round_up, round_down = ([mb / n for mb, n in zip(total, rounds, strict=True)] for total in (up, down))
    console.say(
        f"parameters: {span([run.width for run in runs], '{:,.0f}')} trainable (D); state of an algorithm "
        f"{span([run.state / 1e6 for run in runs])} MB\n"
        f"bytes: a round {span(round_up)} MB up and {span(round_down)} MB down, "
        f"a trial {span(up)} and {span(down)}, together {sum(up):,.1f} and {sum(down):,.1f}"
    )
    size = usable_gib(card) if card else memory.here()
    if on_card:
        most, config = max(on_card, key=lambda entry: memory.on_a_card(entry[1]) * entry[0].total)
        actor = f"GiB of its card that a client actor takes at most ({config.method})"
        console.say(most.sentence(actor, memory.on_a_card(config), size))
        if config.rlhf.gpus_per_worker and not registry.objective(config.objective).is_policy:
            console.say(memory.policy_worker(config).sentence("GiB that stage 2 takes there", card=size))
    if costs == forecast.Costs():
        console.say("hours and the machine's own memory: not known, for there is no GPU here to time a step on")
        return 0
    process, actor = costs.process / 1e9, costs.actor / 1e9
    trial_size = 2 * process + max(client_actors) * actor
    parts = f"{process:.2f} GB a server and as much for the trial's function"
    if all(in_one_process(trial.config, len(bundles)) for trial, bundles in zip(missing, requests, strict=True)):
        trial_size, parts = actor, "which is the server's and the trial's process, too"
    console.say(
        f"memory: {actor:.2f} GB a client actor, {parts}; so "
        f"{trial_size:.1f} GB a trial, {max(fitting, 1) * trial_size:.1f} GB for {max(fitting, 1)} at a time"
    )
    minutes = [run.seconds / 60 for run in runs]
    console.say(
        f"time: {span(minutes)} minutes a trial, {sum(minutes) / 60 / max(fitting, 1):,.2f} hours for all, "
        f"{max(fitting, 1)} at a time: an estimate from {1e3 * costs.step:.1f} ms a client's step and "
        f"{1e3 * costs.comparison:.2f} ms a comparison, timed here; start-up and transfers come on top"
    )
    return 0


def span(values: Sequence[float], form: str = "{:,.2f}") -> str:
    """The range of the values: 'a to b', or 'a' where they read alike."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"
