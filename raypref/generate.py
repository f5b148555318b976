"""`python -m raypref.generate RUN --client ID --prompt …`: what a trained policy answers to a client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from raypref.config import UserError, read_config
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.models.policy import Policy


@dataclass(frozen=True)
class Options:
    """Responses of a policy of `python -m raypref.rlhf`, given a client's z. The response to one --prompt is printed as
    it is; several are told apart by lines that begin with `prompt: `, `response: ` and, with --frozen, `frozen: `."""

    run: tyro.conf.Positional[str] = ""
    """A policy: its folder, or its MLflow run id."""
    client: str = ""
    """Whose z: a client of the run, or a person that `python -m raypref.onboard` made known to it; a policy without z
    answers everybody alike."""
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
    check(options)

    from raypref.models.identity import check_base
    from raypref.storage import locate

    folder = locate.policy(options.run)
    config = read_config(folder)
    if options.base:
        config = replace(config, model=replace(config.model, base=options.base))
    tensors, values = checkpoint.load(folder / "row.safetensors")
    z = None
    if "z" in tensors:
        z = z_of(options.client, folder, tensors["z"], values["ids"])
    elif options.client:
        console.note("note: this policy has no z; it answers every client alike")
    check_base(config.model.base, values["base"], options.run)

    from raypref.models.policy import Policy, Sampling
    from raypref.models.selector import load_selector, load_tokenizer, pad_id

    tokenizer = load_tokenizer(config.model.base)
    selector = load_selector(config.model, (), pad_id(tokenizer))
    policy = Policy(selector, tokenizer, config, 0 if z is None else len(z))
    given = {name: getattr(options, name) for name in ("temperature", "max_new_tokens")}
    sampling = replace(Sampling.of(config), **{name: value for name, value in given.items() if value is not None})
    several = options.n > 1 or len(options.prompt) != 1
    for i, prompt in enumerate(prompts(options)):
        for line in remarks(policy, prompt, sampling.max_new_tokens):
            console.note(f"note: prompt {i + 1}: {line}")
        if several:
            console.say(labelled("prompt", prompt))
        repeated = [prompt] * options.n
        repeated_z = None if z is None else z.expand(options.n, -1)
        for text in policy.generate(tensors["row"], repeated, repeated_z, sampling, options.seed + i).texts:
            console.say(labelled("response", text) if several else text)
        if options.frozen:
            for text in policy.generate(None, repeated, None, sampling, options.seed + i).texts:
                console.say(labelled("frozen", text))
    return 0


def z_of(client: str, folder: Path, z: Tensor, ids: list[str]) -> Tensor:
    """[d] the z of one of the policy's clients `ids` [C], whose z are [C, d], or of a person who is known to the run
    that the policy in `folder` followed. Raises `UserError` where it is neither's name."""
    from raypref.storage import locate, people

    person = None if client in ids else people.find(folder.parent, client)
    if person is None:
        return z[locate.position(client, [*ids, *people.names(folder.parent)], "this policy answers by its z")]
    if person.z is None or person.z.shape != z[0].shape:
        raise UserError(f"{client} has no z of this policy's {z.shape[1]} numbers; run raypref.onboard again")
    return person.z


def labelled(what: str, text: str) -> str:
    """`what: text`, with its further lines indented, so that they are told from the beginning of another text."""
    return f"{what}: {text}".replace("\n", "\n  ")


def check(options: Options) -> None:
    """Raises `UserError` for an option out of range."""
    for flag, value, least in (("n", options.n, 1), ("seed", options.seed, 0)):
        if value < least:
            raise UserError(f"--{flag} is {value}; give at least {least}")
    if options.temperature is not None and not options.temperature > 0:
        raise UserError(f"--temperature is {options.temperature:g}; give one above 0")
    if options.max_new_tokens is not None and options.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens is {options.max_new_tokens}; give at least 1")
    if not all(map(str.strip, options.prompt)):
        raise UserError("--prompt is empty; say what is asked")


def prompts(options: Options) -> Iterator[str]:
    """The prompts of the command line, or else the lines of standard input. Raises `UserError` without any."""
    if options.prompt:
        yield from options.prompt
        return
    if sys.stdin.isatty():
        console.note("a prompt a line; Ctrl-D ends")
    none = True
    try:
        for prompt in filter(None, map(str.strip, sys.stdin)):
            prompt.encode()  # what some locales let through
            yield prompt
            none = False
    except UnicodeError:
        raise UserError("standard input is not UTF-8; convert it first, as with iconv") from None
    if none:
        raise UserError("there is no --prompt, and no line on standard input; give either")


def remarks(policy: Policy, prompt: str, room: int) -> Iterator[str]:
    """Lines about what a long prompt loses, with `room` tokens for its response."""
    from raypref.data.templates import ask

    length, kept = len(policy.tokenizer(ask(policy.template, prompt)[0])["input_ids"]), len(policy.ask(prompt, room))
    if kept < length:
        yield (
            f"the first {length - kept} of its {length} tokens are left out: data.max_length is {policy.max_length}, "
            f"{room} of them for the response"
        )
    positions = getattr(policy.selector.model.config, "max_position_embeddings", None)
    if positions and kept + room > positions:
        yield f"with {room} tokens of response it takes {kept + room} of the base's {positions} positions"


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
