"""`python -m raypref.generate RUN --client ID --prompt …`: what a trained policy answers to a client."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import tyro

from raypref import checkpoint, console
from raypref.cli import parse
from raypref.config import UserError, from_dict, nearest


@dataclass(frozen=True)
class Options:
    """Responses of a policy of `python -m raypref.rlhf`, given a client's z."""

    run: tyro.conf.Positional[str] = ""
    """A policy: its folder, or its MLflow run id."""
    client: str = ""
    """Whose z; a policy without z answers everybody alike."""
    prompt: tuple[str, ...] = ()
    """What is asked; several are answered one after another. Left out: a line each from standard input."""
    n: int = 1
    """Responses to each."""
    frozen: bool = False
    """Also show what the frozen base answers."""
    base: str = ""
    """The base, where it does not lie where the run had it: a folder or a hub id."""
    seed: int = 0
    """Of what is drawn."""
    temperature: float | None = None
    """Left out: the run's."""
    max_new_tokens: int | None = None
    """Longest response; left out: the run's."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python -m raypref.generate")
    if not options.run:
        raise UserError(
            "RUN comes first, a policy's folder or MLflow run id: python -m raypref.generate RUN --client ID"
        )
    if options.n < 1 or options.seed < 0:
        raise UserError(f"--n is {options.n} and --seed {options.seed}; give at least 1 and at least 0")

    from raypref import locate
    from raypref.models.identity import check_base

    folder = locate.policy(options.run)
    config = from_dict(checkpoint.read_json(folder / "config.json"))
    if options.base:
        config = replace(config, model=replace(config.model, base=options.base))
    tensors, known = checkpoint.load(folder / "row.safetensors")
    z = None if "z" not in tensors else tensors["z"][position(options.client, known["ids"])]
    if z is None and options.client:
        console.say("note: this policy has no z; it answers every client alike")
    check_base(config.model.base, known["base"], options.run)

    from raypref.models.policy import Policy, Sampling
    from raypref.models.selector import load_selector, load_tokenizer, pad_id

    tokenizer = load_tokenizer(config.model.base)
    selector = load_selector(config.model, (), pad_id(tokenizer))
    policy = Policy(selector, tokenizer, config, 0 if z is None else len(z))
    sampling = Sampling.of(config)
    if options.temperature is not None:
        sampling = replace(sampling, temperature=options.temperature)
    if options.max_new_tokens is not None:
        sampling = replace(sampling, max_new_tokens=options.max_new_tokens)
    if sampling.temperature <= 0 or sampling.max_new_tokens < 1:
        raise UserError("--temperature must be above 0 and --max-new-tokens at least 1")
    for i, prompt in enumerate(options.prompt or filter(None, map(str.strip, sys.stdin))):
        asked = [prompt] * options.n
        given = None if z is None else z.expand(options.n, -1)
        for text in policy.generate(tensors["row"], asked, given, sampling, options.seed + i).texts:
            console.say(text)
        if options.frozen:
            for text in policy.generate(None, asked, None, sampling, options.seed + i).texts:
                console.say(f"frozen: {text}")
    return 0


def position(client: str, ids: list[str]) -> int:
    """Where a client stands among those of the run; `UserError` where it is none of them."""
    if client not in ids:
        what = (
            f"client {client!r} took no part" if client else "--client is missing: this policy answers by a client's z"
        )
        hint = nearest(client, ids)
        few = f"; there are {len(ids)}, such as {', '.join(ids[:3])}"
        raise UserError(f"{what}{hint if 'did you mean' in hint else few}")
    return ids.index(client)


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
