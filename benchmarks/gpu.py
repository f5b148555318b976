"""`python benchmarks/gpu.py`: what raypref does with a card, on a base of Qwen2-0.5B's shape with random weights.

- `correct`: clients that share a pass have the gradients that each has alone, in float32;
- `speed`: tokens a second of ten stacked clients in bfloat16, against the base's own forward and backward pass;
- `memory`: what a card holds at its fullest moment by number of clients, and what was forecast;
- `sharing`: a round by one, two and four client actors on one card;
- `stage2`: a round of policy training by torch and by DeepSpeed's ZeRO 1 to 3 over nccl, in one process, and in one a
  card where there are several.

Without a GPU it says so in a line, and ends. `--cpu` runs every line of it on a tiny base, to see that it works. Lines
come to `--out` as they are measured; what does not fit a card is said.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/gpu.py` finds the package where it is not installed

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.measuring import Lines, Ratio, alternate, machine, main, own_ray, ratios, spread, table  # noqa: E402
from benchmarks.speed import CHOICES, Base, Steps, batches_of, fold_of  # noqa: E402
from raypref.config import RunConfig, UserError, override, registry  # noqa: E402
from raypref.data.encode import Counts, EncodedClient, EncodedFederation, choice_tokens  # noqa: E402
from raypref.tools import checkpoint, console  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402
from raypref.tools.errors import nearest  # noqa: E402

GIB = 1 << 30
QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
TINY = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 1536,
}
CLOSE = 1e-4
"""Most that a client's gradient may differ from what it is alone, by its own largest element."""
TOPICS = ("sleep", "rain", "books", "the sky", "bread", "cats", "music", "a garden")


@dataclass(frozen=True)
class Options:
    """Measure raypref on a GPU: speed, memory, actors that share a card, stage 2; and that it is right there."""

    lines: tuple[str, ...] = ()
    """Which: correct, speed, memory, sharing, stage2. Default: all."""
    cpu: bool = False
    """Run every line on a CPU with a tiny base: whether everything works."""
    clients: int = 10
    """In a pass."""
    pairs: int = 2
    """Comparisons of each in a step."""
    length: int = 512
    """Tokens of a comparison."""
    runs: int = 5
    """Turns of everything that is compared."""
    out: Path = Path("runs/gpu")
    """Where lines and tables go."""
    cache: Path = Path("~/.cache/raypref/benchmarks")
    """Where the base is kept."""


class Bench:
    """The options, the base and what has been measured."""

    def __init__(self, options: Options) -> None:
        self.options, self.lines = options, Lines(options.out / "lines.jsonl")
        self.device = "cpu" if options.cpu else "cuda"
        shape = TINY if options.cpu else QWEN
        self.base = random_base(options.cache / ("tiny" if options.cpu else "qwen2-0.5b"), shape)
        self.length = 12 if options.cpu else options.length
        self.runs = 1 if options.cpu else options.runs

    def steps(self, dtype: str, **changes: Any) -> Steps:
        """Clients' steps on the device."""
        where = {"model.dtype": dtype, "clients.gpus_per_actor": 0.0 if self.options.cpu else 1.0}
        return Steps(self.base, pairs=self.options.pairs, length=self.length, changes=where | changes)

    def done(self, work: Callable[[], Any]) -> None:
        """Do something on the device to its end."""
        work()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        """Give back what nobody holds any more, and begin a new peak."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        """GiB of tensors since `free`; without a card of this process's memory since its start."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / GIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def random_base(folder: Path, shape: dict[str, int]) -> str:
    """A Qwen2 with random weights and the embedded base's tokenizer, made where it is missing."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from raypref.models.embedded import PATH

    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        config = AutoConfig.for_model("qwen2", tie_word_embeddings=True, **shape)
        AutoTokenizer.from_pretrained(PATH).save_pretrained(folder)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


def correct(bench: Bench) -> str:
    """Gradients of clients in one pass, and of each alone, with dropout."""
    steps, n = bench.steps("float32"), bench.options.clients
    together = steps.local(0.05, n)
    start = together.rows.detach().clone()
    together.advance(1)
    shared = together.rows.grad.clone()
    apart = []
    for c in range(n):
        alone = type(together)(together.worker, [c], start[c : c + 1], together.stretch)
        alone.advance(1)
        gradient = alone.rows.grad[0]
        apart.append(float((shared[c] - gradient).abs().max() / gradient.abs().max()))
    bench.lines.add(row="correct", what="gradient", difference=max(apart))
    if max(apart) > CLOSE:
        raise UserError(f"a client's gradient in a pass of {n} differs by {max(apart):.1e} from its own: a mistake")
    return f"Of {n} clients in a pass each has the gradient that it has alone, to {max(apart):.0e} (float32)."


def speed(bench: Bench) -> str:
    """Stacked clients against the base, on the same tokens."""
    steps, n = bench.steps("bfloat16"), bench.options.clients
    local = steps.local(0.05, n)
    batches = [batches_of(local, c, 0, 1)[0] for c in range(n)]
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    pruned, unpruned = (Base(bench.base, p, torch.bfloat16, bench.device) for p in (True, False))
    again, tokens = (1 if bench.options.cpu else 5), n * steps.pairs * steps.length

    def repeated(work: Callable[[], Any]) -> float:
        bench.done(lambda: [work() for _ in range(again)])
        return again

    stacked = f"{n} stacked"
    works: dict[str, Callable[[], Any]] = {
        stacked: lambda: local.advance(1),
        "base": lambda: pruned.step(whole),
        "base, last block whole": lambda: unpruned.step(whole),
        "base, a client at a time": lambda: [pruned.step(batch) for batch in batches],
    }
    alternate("speed", {what: partial(repeated, work) for what, work in works.items()}, bench.runs, bench.lines)
    shown = []
    for what in works:
        rate = spread((tokens / x for x in bench.lines.of("speed", what, "wall").values()), 4)
        share = spread(ratios(bench.lines, "speed", Ratio(what, stacked, measure="wall")))
        shown.append((what, rate, share if what != stacked else ""))
    head = ("bfloat16", "tokens a second", f"{stacked}, by its rate (goal ≥ 0.7 of the base)")
    return table(head, shown)


def memory(bench: Bench) -> str:
    """Peaks of a training step by number of clients, with blocks that keep everything and that run again."""
    from raypref.experiment.memory import Shape, client_actor

    shown = []
    for n in dict.fromkeys((1, 2, 5, 10, 20, bench.options.clients)):
        for recompute in (False, True):
            steps = bench.steps("bfloat16", **{"clients.recompute": recompute})
            bench.free()
            measured: float | str = "does not fit"
            local = None
            with contextlib.suppress(torch.OutOfMemoryError):
                local = steps.local(0.05, n)
                bench.done(partial(local.advance, 1))
                measured = bench.peak()
            config, pairs = steps.config(0.05), steps.pairs
            width = registry.objective(config.objective).layout(config).width
            shape = Shape(n, pairs, steps.length, n * pairs, pairs)
            parts = client_actor(config, shape, 2 * 4.0 * n * width, 2 * 4.0 * n * width).parts
            forecast = sum(size for name, size in parts.items() if not name.startswith("evaluation")) / GIB
            bench.lines.add(row="memory", clients=n, recompute=recompute, gib=measured, forecast=forecast)
            shown.append((n, "run again" if recompute else "kept", measured, forecast))
            del local
    what = "process, GiB" if bench.options.cpu else "peak of tensors, GiB"
    return table(("clients in a pass", "blocks", what, "forecast"), shown)


@contextlib.contextmanager
def ray_ends() -> Iterator[None]:
    """No Ray of this process outlives it."""
    import ray

    try:
        yield
    finally:
        ray.shutdown()


def sharing(bench: Bench) -> str:
    """Seconds of a round of all clients by actors that share a card, or a machine's CPUs."""
    from raypref.clients import actors
    from raypref.clients.pool import Inputs
    from raypref.experiment.loop import connect

    shown, n = [], 4 if bench.options.cpu else 2 * bench.options.clients
    with own_ray(), ray_ends():
        actors.start_ray()
        for count in (1, 2) if bench.options.cpu else (1, 2, 4):
            steps = bench.steps("bfloat16")
            share = {"clients.cpus_per_actor": 0.9 / count}
            share |= {} if bench.options.cpu else {"clients.gpus_per_actor": 1.0 / count}
            federation = {
                "algorithm": "fedavg",
                "federation.cohort": n,
                "federation.local_steps": 2,
                "federation.rounds": bench.runs + 1,
                "clients.backend": "ray",
                "clients.clients_per_actor": -(-n // count),
                "clients.stack": bench.options.clients,
            }
            config = override(steps.config(0.05), federation | share)
            clients = []
            for c in range(n):
                train, other = fold_of(steps.pairs, [steps.length], c), fold_of(1, [steps.length], c)
                clients.append(EncodedClient(train, other, other))
            ids = tuple(map(str, range(n)))
            data = EncodedFederation(ids, np.full(n, -1), (), tuple(clients), Counts())
            layout = registry.objective(config.objective).layout(config)
            with contextlib.closing(connect(Inputs(config, data, CHOICES, 0, layout))) as pool:
                algorithm = registry.algorithm("fedavg")(config, pool)
                state, took = algorithm.init(), []
                for _ in range(bench.runs + 1):
                    began = time.perf_counter()
                    state, _ = algorithm.round(state)
                    took.append(time.perf_counter() - began)
            bench.lines.add(row="sharing", actors=count, seconds=took[1:])
            shown.append((count, 1.0 / count, spread(took[1:])))
    kind = "CPU" if bench.options.cpu else "GPU"
    return table(("client actors", f"{kind} each", f"seconds of a round of {n} clients, 2 steps each"), shown)


def stage2(bench: Bench) -> str:
    """Seconds of a round of policy training by each engine, alone and over several processes."""
    from raypref.policy import job

    cards = 2 if bench.options.cpu else torch.cuda.device_count()
    engines = ("torch", "zero 1", "zero 2", "zero 3")
    cases = [(1, engine) for engine in engines]
    if cards > 1:
        cases += [(cards, engine) for engine in (("zero 2",) if bench.options.cpu else engines)]
    shown, rows = [], {}
    for world, engine in cases:
        times: list[float] = []
        where = {
            "rlhf.engine": "torch" if engine == "torch" else "deepspeed",
            "rlhf.zero_stage": int(engine[-1]) if engine != "torch" else 2,
            "rlhf.workers": world,
            "rlhf.backend": "local" if world == 1 else "ray",
            "rlhf.gpus_per_worker": 0.0 if bench.options.cpu else 1.0,
        }
        bench.free()
        with tempfile.TemporaryDirectory(dir=bench.options.out) as folder, own_ray(), ray_ends():
            job.run(task(bench, where), Path(folder), lambda round, metrics: times.append(time.perf_counter()))  # noqa: B023
            row = checkpoint.load(Path(folder) / "row.safetensors")[0]["row"].float().cpu()
        rows[world, engine] = row
        plain = rows.get((world, "torch"))  # other numbers of processes draw other responses
        apart = None if plain is None else float((row - plain).abs().max())
        took = np.diff(times).tolist()
        bench.lines.add(row="stage2", processes=world, engine=engine, seconds=took, difference=apart)
        shown.append((world, engine, spread(took), "-" if apart is None else f"{apart:.0e}"))
    backend = "gloo" if bench.options.cpu else "nccl"
    head = (
        "processes",
        f"engine ({backend})",
        "seconds of a round",
        "largest difference from torch",
    )
    return table(head, shown)


def task(bench: Bench, where: dict[str, Any]) -> Any:
    """Stage 2 with one selector that votes: short prompts, responses as long as they may be."""
    from raypref.models.layout import initial_row
    from raypref.models.selector import load_tokenizer, pad_id
    from raypref.objectives.base import row_layout
    from raypref.policy.task import Prompts, Task

    small = bench.options.cpu
    given = {
        "algorithm": "fedavg",
        "model.base": bench.base,
        "model.dtype": "float32" if small else "bfloat16",
        "rlhf.rounds": 1 + max(1, bench.runs),
        "rlhf.local_steps": 1 if small else 4,
        "rlhf.batch_size": 2 if small else 16 * max(1, torch.cuda.device_count()),
        "rlhf.max_new_tokens": 4 if small else 128,
        "rlhf.samples": 1,
    }
    config = override(RunConfig(), given | where)
    tokenizer = load_tokenizer(bench.base)
    texts = tuple(f"Tell me of {topic}, please." for topic in TOPICS)
    row = initial_row(row_layout(config), 0)
    noise = 0.02 * torch.randn(1, len(row), generator=torch.Generator().manual_seed(0))
    prompts = Prompts(texts, np.zeros(len(texts), np.int64))
    return Task(
        config=config,
        choice_ids=choice_tokens(tokenizer, config.data.template),
        pad=pad_id(tokenizer),
        rows=(row + noise).numpy(),
        train=prompts,
        test=Prompts(texts[:1], prompts.client[:1]),
        ids=("0",),
        base="",
        groups=("",),
        unseen=frozenset(),
    )


LINES: dict[str, Callable[[Bench], str]] = {
    "correct": correct,
    "speed": speed,
    "memory": memory,
    "sharing": sharing,
    "stage2": stage2,
}


def command(argv: list[str]) -> int:
    """The command line; see `Options`. Exit status 1 where a line could not be measured."""
    options = parse(Options, argv, "python benchmarks/gpu.py", Options())
    for name in options.lines:
        if name not in LINES:
            raise UserError(f"--lines: unknown line {name!r}{nearest(name, LINES)}")
    for name in ("clients", "pairs", "length", "runs"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}; give 1 or more")
    if not options.cpu and not torch.cuda.is_available():
        console.say("skipped: there is no GPU here that torch can use; --cpu runs every line on a tiny base")
        return 0
    values = {name: getattr(options, name).expanduser().absolute() for name in ("out", "cache")}
    bench = Bench(Options(**(vars(options) | values)))
    device = "no GPU" if options.cpu else f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    parts, failed = [], False
    for name in options.lines or tuple(LINES):
        began = time.monotonic()
        bench.free()
        try:
            part = LINES[name](bench)
        except (UserError, RuntimeError) as error:  # of CUDA and of torch's processes; the others are still measured
            failed, part = True, f"`{name}` not measured: {' '.join(str(error).split()) or type(error).__name__}"
            bench.lines.add(row=name, note=part)
        console.say(f"{part}\n({name}: {time.monotonic() - began:.0f} s)\n")
        parts.append(part)
    about = f"{options.clients} clients of {options.pairs} comparisons of {bench.length} tokens; {device}; {machine()}"
    (bench.options.out / "table.md").write_text("\n\n".join([*parts, about]) + "\n")
    console.say(about)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(command))
