"""`make bench`, or `python benchmarks/speed.py`: how fast clients train and are judged, beside what could be expected.

- `dropout`, `plain`: a training step of clients that share a pass, against PEFT's loop, client after client
  (`benchmarks/plain.py`), and against what cannot be avoided, the frozen base's own forward pass and the backward pass
  to its embeddings, with the last block computed where it is read alone, as in a client's step, and whole;
- `stacks`: the same with 20 and 40 clients in a pass;
- `wide`: the same on a base of 23 million random weights;
- `round`: a round of 100 clients on two actors, against Flower's simulation engine in an environment of its own, which
  the benchmark makes once (`--cache`);
- `judging`: what a comparison costs to judge, against the base's forward pass.

What is compared takes turns, and ratios are of one turn each, so that other work on the machine meets both alike. Times
are CPU time on one thread a process. That both do the same work is checked: without dropout the final rows of raypref
and of PEFT's loop differ by at most 1e-4. Lines come to `--out` as they are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/speed.py` finds the package where it is not installed
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from benchmarks.measuring import Lines, Ratio, alternate, conclude, machine, main, ratios, spread, table  # noqa: E402
from benchmarks.plain import Batch, Plain, choice_loss  # noqa: E402
from raypref.clients.work import Evaluate  # noqa: E402
from raypref.clients.worker import LocalTraining, Stretch, Worker, comparisons  # noqa: E402
from raypref.config import RunConfig, UserError, override, to_dict  # noqa: E402
from raypref.data.encode import EncodedClient, EncodedFold  # noqa: E402
from raypref.models.block import block_at  # noqa: E402
from raypref.models.layout import initial_row  # noqa: E402
from raypref.models.selector import base_layout, base_path  # noqa: E402
from raypref.tools import checkpoint, console  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402
from raypref.tools.errors import nearest  # noqa: E402
from raypref.tools.rng import stream  # noqa: E402

CHOICES = (5, 6)
"""Tokens of A and B where tokens are drawn at random."""
CLOSE = 1e-4
"""Most that final rows may differ by."""
STEPS = 3
"""AdamW steps of that check."""
FLOWER = ("flwr[simulation]==1.42.0",)
"""The peer; it brings a Ray of its own."""


@dataclass(frozen=True)
class Options:
    """Measure how fast clients train and are judged, beside PEFT's loop, Flower and the frozen base itself."""

    rows: tuple[str, ...] = ()
    """Which: dropout, plain, stacks, wide, wide256, round, judging. Default: all."""
    runs: int = 5
    """Turns of everything that is compared."""
    quick: bool = False
    """One turn of each: whether everything works."""
    out: Path = Path("runs/speed")
    """Where lines and table go."""
    cache: Path = Path("~/.cache/raypref/benchmarks")
    """Where the wide base and Flower's environment are kept."""


@dataclass(frozen=True)
class Row:
    """A row of the table: what it measures, and which of its numbers are compared."""

    about: str
    measure: Callable[[str, Options, Lines], None]
    ratios: tuple[Ratio, ...]
    unit: str = "client step"
    wall: bool = False


# --- clients' steps ---------------------------------------------------------------------------------------------------


def fold_of(pairs: int, lengths: Sequence[int], seed: int) -> EncodedFold:
    """Pairs of random tokens, two sequences each of the next of these lengths in turn."""
    draw = np.random.default_rng(seed)
    each = np.resize(lengths, 2 * pairs)
    tokens = draw.integers(7, 1500, size=each.sum(), dtype=np.int32)
    return EncodedFold(tokens, np.concatenate([[0], np.cumsum(each)]), np.zeros((2 * pairs, 4), np.int32))


def started(worker: Worker, n: int) -> Tensor:
    """[n, D] rows as after some training: no adapter's product is zero."""
    noise = torch.randn(n, worker.layout.width, generator=torch.Generator().manual_seed(0))
    return initial_row(worker.layout, 0) + 0.02 * noise


class Base:
    """The frozen base alone: what every way of training adapters has to compute."""

    def __init__(self, base: str, pruned: bool, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        """pruned: compute the last block at the choice mark alone, as clients do."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device).requires_grad_(False).eval()
        self.body, self.head = model.model, model.get_output_embeddings().weight[list(CHOICES)].clone()
        self.at: Tensor | None = None
        if pruned:
            block = self.body.layers[-1]
            block.forward = self._at(block)

    def _at(self, block: nn.Module) -> Callable[..., Tensor]:
        def forward(hidden: Tensor, **rest: Any) -> Tensor:
            assert self.at is not None
            return block_at(block, hidden, self.at, rest["position_embeddings"])

        return forward

    def last(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        """[b, L, H], [b] -> last hidden states at the choice mark [b, H]."""
        self.at = lengths[:, None] - 1
        hidden = self.body(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return hidden[:, 0] if hidden.shape[1] == 1 else hidden[torch.arange(len(hidden)), lengths - 1]

    def step(self, batch: Batch) -> None:
        """Forward, and backward to the embeddings."""
        ids, lengths, slots = batch
        embedded = self.body.embed_tokens(ids).requires_grad_()
        torch.autograd.grad(choice_loss(self.last(embedded, lengths), self.head, slots), [embedded])


@dataclass(frozen=True)
class Steps:
    """Clients' training steps on one base."""

    base: str = "embedded"
    dropouts: tuple[float, ...] = (0.05,)
    stacks: tuple[int, ...] = (5,)
    pairs: int = 8
    length: int = 56
    least: int = 40
    """Client steps that each turn measures at least."""
    peers: int = 5
    """Clients of the peers in a turn: they are taken one after another."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the configuration."""

    def config(self, dropout: float) -> RunConfig:
        given = {"model.base": self.base, "model.lora_dropout": dropout, "optim.batch_size": self.pairs}
        return override(RunConfig(), given | self.changes)

    def local(self, dropout: float, clients: int) -> LocalTraining:
        """Clients that are about to train, each with its own pairs."""
        data = {}
        for c in range(clients):
            train, other = fold_of(self.pairs, [self.length], c), fold_of(1, [self.length], c)
            data[c] = EncodedClient(train, other, other)
        config = self.config(dropout)
        worker = Worker(config, data, CHOICES, 0)
        rows = started(worker, clients).to(worker.device)
        return LocalTraining(worker, range(clients), rows, Stretch("train", 0, 10_000, config.optim.learning_rate))

    def plain(self, dropout: float) -> Plain:
        config = self.config(dropout)
        return Plain(**plain_words(config, base_layout(config.model).segments, CHOICES))


def plain_words(config: RunConfig, segments: Sequence[Any], choices: Sequence[int]) -> dict[str, Any]:
    """`Plain` of the same base, adapter and optimizer; it can be written as JSON."""
    m, o = config.model, config.optim
    return {
        "base": base_path(m.base),
        "segments": [(s.name, s.shape) for s in segments],
        "choices": list(choices),
        "lora": {
            "r": m.lora_r,
            "lora_alpha": m.lora_alpha,
            "lora_dropout": m.lora_dropout,
            "target_modules": list(m.lora_targets),
        },
        "optimizer": {"lr": o.learning_rate, "betas": o.betas, "weight_decay": o.weight_decay},
    }


def batches_of(local: LocalTraining, client: int, begin: int, end: int) -> list[Batch]:
    """What a client of `local` sees in some steps, as the peers take it."""
    reader, fold = local.worker.reader, local.folds[client]
    out = []
    for drawn in local.batches[client][begin:end]:
        ids, lengths, _ = reader.batch([fold], [drawn])
        out.append((ids[0], lengths[0], reader.tensor(drawn % 2)))
    return out


def difference(steps: Steps, clients: int = 2) -> tuple[float, float]:
    """Largest difference of any parameter between raypref's clients and PEFT's after `STEPS` steps without dropout, and
    how far the steps have moved one at most."""
    local = steps.local(0.0, clients)
    start = local.rows.detach().clone()
    local.advance(STEPS)
    plain = steps.plain(0.0)
    ours = torch.from_numpy(local.result())
    theirs = [plain.trained(start[c], batches_of(local, c, 0, STEPS)) for c in range(clients)]
    return float((ours - torch.stack(theirs)).abs().max()), float((ours - start).abs().max())


def measure_steps(steps: Steps, row: str, options: Options, lines: Lines) -> None:
    """Each stack, PEFT's loop and the base, in turns."""
    apart, moved = difference(steps)
    if apart > CLOSE:
        raise UserError(f"{row}: final rows of raypref and of PEFT's loop differ by {apart:.1e}: not the same work")
    lines.add(row=row, note=f"final rows, moved by {moved:.0e}, equal to {apart:.0e}", difference=apart)
    base, whole = Base(base_path(steps.base), True), Base(base_path(steps.base), False)
    batches = [batches_of(steps.local(0.0, steps.peers), c, 0, 1)[0] for c in range(steps.peers)]
    again = max(1, round(steps.least / steps.peers))

    def each(step: Callable[[Batch], None]) -> float:
        for _ in range(again):
            for batch in batches:
                step(batch)
        return again * len(batches)

    def stacked(local: LocalTraining) -> float:
        n = len(local.clients)
        local.advance(max(1, round(steps.least / n)))
        return max(1, round(steps.least / n)) * n

    compared: dict[str, Callable[[], float]] = {}
    for p in steps.dropouts:
        for n in steps.stacks:
            compared[named(steps, p, n)] = partial(stacked, steps.local(p, n))
        compared[named(steps, p)] = partial(each, steps.plain(p).step)
    compared |= {"base": partial(each, base.step), "base, last block whole": partial(each, whole.step)}
    alternate(row, compared, options.runs, lines)


def named(steps: Steps, dropout: float, stacked: int = 0) -> str:
    """What the table calls one of the things compared; 0 stacked: PEFT's loop."""
    which = "" if len(steps.dropouts) == 1 else f", dropout {dropout:g}"
    return f"{stacked} stacked{which}" if stacked else f"PEFT{which}"


# --- a round, beside Flower -------------------------------------------------------------------------------------------


def environment(cache: Path) -> Path:
    """Flower's Python, made where it is missing."""
    folder = cache / "flower"
    python, made = folder / "bin" / "python", folder / ".made"
    words = " ".join(FLOWER)
    if not made.exists() or made.read_text() != words:
        console.say(f"setting up Flower's environment in {folder} (some minutes, once)")
        pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
        same = [pin for pin in pins if pin.split("==")[0] in ("torch", "transformers", "peft", "numpy", "accelerate")]
        torch_pin = next(pin for pin in same if pin.startswith("torch=="))
        run = partial(subprocess.run, check=True, capture_output=True, text=True)
        try:
            run([sys.executable, "-m", "venv", str(folder)])
            run([str(python), "-m", "pip", "install", "-q", torch_pin])
            run([str(python), "-m", "pip", "install", "-q", *same, *FLOWER, "psutil"])
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UserError(f"Flower's environment cannot be made: {last}; leave the row `round` out") from error
        made.write_text(words)
    return python


def version(python: Path, package: str) -> str:
    """Of a package in another environment."""
    words = [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class Cohort:
    """A federation in which all clients take part in every round, without dropout, whose draws differ between both."""

    clients: int = 100
    rounds: int = 5
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the configuration."""

    def config(self) -> RunConfig:
        share = self.clients // 4
        given = {
            "algorithm": "fedavg",
            "data.group_sizes": (share, share, share, self.clients - 3 * share),
            "data.pairs_per_axis": 20,
            "model.lora_dropout": 0.0,
            "optim.batch_size": 4,
            "federation.cohort": self.clients,
            "federation.local_steps": 2,
            "federation.rounds": self.rounds,
            "clients.backend": "ray",
            "clients.clients_per_actor": -(-self.clients // 2),
        }
        return override(RunConfig(), given | self.changes)

    def write(self, folder: Path) -> None:
        """What both sides read: the configuration, and for Flower every client's batches of every round."""
        from raypref.experiment.loop import prepare

        config = self.config()
        inputs = prepare(config)
        steps, b = config.federation.local_steps, config.optim.batch_size
        folds = [client.train for client in inputs.data.clients]
        if min(fold.pairs for fold in folds) < b:
            raise UserError("a client has fewer pairs than a batch")
        shape = (self.rounds, self.clients, steps, b)
        ids = np.full((*shape, max(int(f.lengths.max()) for f in folds)), inputs.pad, np.int64)
        lengths, slots = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for r in range(self.rounds):
            for c, fold in enumerate(folds):
                for s, drawn in enumerate(comparisons(fold.pairs, b, steps, stream(config.seed, "train", r, c))):
                    ids[r, c, s] = fold.padded(drawn, ids.shape[-1], inputs.pad)
                    lengths[r, c, s], slots[r, c, s] = fold.lengths[drawn], drawn % 2
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "batches.npz", ids=ids, lengths=lengths, slots=slots, sizes=inputs.sizes)
        np.save(folder / "start.npy", initial_row(inputs.layout, config.seed).numpy())
        checkpoint.write_json(folder / "config.json", to_dict(config))
        plain = plain_words(config, inputs.layout.segments, inputs.choice_ids)
        what = {"plain": plain, "clients": self.clients, "rounds": self.rounds, "actors": 2}
        (folder / "what.json").write_text(json.dumps(what))


class Side:
    """A process that does a round when it is its turn."""

    def __init__(self, python: Path, script: str, folder: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PYTHON"))}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        where = {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        self.errors = folder / f"{script}.err"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [str(python), "-u", str(ROOT / "benchmarks" / f"{script}.py"), str(folder)],
                env=kept | quiet | where,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def read(self) -> str:
        """Its next line that is meant for us."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("@"):
                return line[1:].strip()
        reason = (self.errors.read_text().strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"{self.errors.stem} has ended: {reason}; all of it is in {self.errors}")

    def round(self) -> dict[str, float]:
        """Let it do a round; it has said that it is ready."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return json.loads(self.read())

    def close(self) -> None:
        """It ends by itself where its standard input does; what it has started must not outlive it."""
        import psutil

        assert self.process.stdin
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            for process in [psutil.Process(self.process.pid), *family] if self.process.poll() is None else family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


@contextmanager
def side(python: Path, script: str, folder: Path) -> Iterator[Side]:
    """A `Side` that has started."""
    started = Side(python, script, folder)
    try:
        yield started
    finally:
        started.close()


def measure_round(cohort: Cohort, row: str, options: Options, lines: Lines) -> None:
    """A steady round of each in turn, after one that is not counted, from the same rows on the same batches."""
    cohort = replace(cohort, rounds=options.runs + 1)
    python, folder = environment(options.cache), options.out.absolute() / "round"
    cohort.write(folder)
    ours, theirs = "raypref, 2 actors", "Flower, 2 workers"
    with side(Path(sys.executable), "raypref_side", folder) as one, side(python, "flower_side", folder) as other:
        for run in range(cohort.rounds):
            for what, process in ((ours, one), (theirs, other)):
                if (said := process.read()) != "ready":
                    raise UserError(f"{process.errors.stem} says {said}")
                took = process.round()
                if run:
                    lines.add(row=row, run=run - 1, what=what, **took, load=round(os.getloadavg()[0], 1))
    pairs = [(np.load(folder / f"{name}-{cohort.rounds}.npy")) for name in ("raypref", "flower")]
    apart = float(np.abs(pairs[0] - pairs[1]).max())
    if apart > CLOSE:
        raise UserError(f"{row}: after {cohort.rounds} rounds the rows differ by {apart:.1e}: not the same work")
    versions = f"Flower {version(python, 'flwr')} on Ray {version(python, 'ray')}"
    lines.add(row=row, note=f"{versions}; rows after {cohort.rounds} rounds equal to {apart:.0e}", difference=apart)


# --- judging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judging:
    """Clients' folds, judged by one row and by several."""

    base: str = "embedded"
    clients: int = 10
    pairs: int = 32
    rows: int = 4
    lengths: tuple[int, ...] = tuple(range(30, 70, 2))
    changes: dict[str, Any] = field(default_factory=dict)


def measure_judging(judging: Judging, row: str, options: Options, lines: Lines) -> None:
    """Of a comparison and row; the base reads the same comparisons, all of like length together."""
    config = override(RunConfig(), {"model.base": judging.base} | judging.changes)
    folds = [fold_of(judging.pairs, stream(0, "lengths", c).permutation(judging.lengths), c)
             for c in range(judging.clients)]  # fmt: skip
    worker = Worker(config, {c: EncodedClient(f, f, f) for c, f in enumerate(folds)}, CHOICES, 0)
    rows, clients = started(worker, judging.rows).numpy(), np.arange(judging.clients)
    base, size = Base(base_path(judging.base), True), config.clients.eval_batch
    every = np.concatenate([[(c, j) for j in range(2 * judging.pairs)] for c in range(judging.clients)])
    order = sorted(every.tolist(), key=lambda at: -folds[at[0]].lengths[at[1]])
    batches = []
    for start in range(0, len(order), size):
        part = order[start : start + size]
        lengths = torch.tensor([int(folds[c].lengths[j]) for c, j in part])
        ids = np.concatenate([folds[c].padded(np.array([j]), int(lengths.max()), 0) for c, j in part])
        batches.append((torch.from_numpy(ids), lengths))

    def judged(K: int) -> float:
        worker.evaluate(Evaluate(clients, rows[:K], "test"))
        return K * len(order)

    @torch.inference_mode()
    def read() -> float:
        for ids, lengths in batches:
            base.last(base.body.embed_tokens(ids), lengths) @ base.head.T
        return len(order)

    compared = {"1 row": partial(judged, 1), f"{judging.rows} rows": partial(judged, judging.rows), "base": read}
    alternate(row, compared, options.runs, lines)


# --- all of it --------------------------------------------------------------------------------------------------------


def step_ratios(stacked: str, peer: str, faster: str, slower: str) -> tuple[Ratio, ...]:
    """A stack against PEFT's loop and against the base, with what is wanted of both."""
    return (
        Ratio(peer, stacked, f"≥ {faster}"),
        Ratio(stacked, "base", f"≤ {slower}" if slower else ""),
        Ratio(stacked, "base, last block whole"),
    )


def wide_ratios() -> tuple[Ratio, ...]:
    return tuple(
        ratio
        for p in ("0.05", "0")
        for ratio in step_ratios(f"5 stacked, dropout {p}", f"PEFT, dropout {p}", "1.25", "1.2")
    )


def wide_base(cache: Path) -> str:
    """A Qwen2 of width 512 and 8 layers with random weights, made where it is missing."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = cache / "wide"
    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "qwen2",
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=2,
            vocab_size=1536,
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def measure_wide(row: str, options: Options, lines: Lines, length: int, peers: int) -> None:
    # AdamW moves a parameter by about the rate even where its gradient is little more than rounding, as some are here.
    rate = {"optim.learning_rate": 1e-4}
    steps = Steps(wide_base(options.cache), (0.05, 0.0), length=length, least=peers, peers=peers, changes=rate)
    measure_steps(steps, row, options, lines)


def rows() -> dict[str, Row]:
    """By name, in the table's order."""
    small = "embedded base, 8 pairs of 56 tokens"
    wide = "Qwen2 of width 512, 8 layers, random weights, 8 pairs of {} tokens"
    stacks = Steps(stacks=(5, 20, 40))
    return {
        "dropout": Row(
            f"a client's step, dropout 0.05: {small}",
            partial(measure_steps, Steps()),
            step_ratios("5 stacked", "PEFT", "2.2", "1.25"),
        ),
        "plain": Row(
            f"a client's step, no dropout: {small}",
            partial(measure_steps, Steps(dropouts=(0.0,))),
            step_ratios("5 stacked", "PEFT", "2.4", ""),
        ),
        "stacks": Row(
            f"more clients in a pass, dropout 0.05: {small}",
            partial(measure_steps, stacks),
            (Ratio("20 stacked", "5 stacked", "≤ 1"), Ratio("40 stacked", "5 stacked", "≤ 1")),
        ),
        "wide": Row(wide.format(56), partial(measure_wide, length=56, peers=5), wide_ratios()),
        "wide256": Row(wide.format(256), partial(measure_wide, length=256, peers=2), wide_ratios()),
        "round": Row(
            "100 clients, all in every round, 2 steps of 4 pairs, no dropout: embedded base",
            partial(measure_round, Cohort()),
            (
                Ratio("Flower, 2 workers", "raypref, 2 actors", "≥ 6", "cpu"),
                Ratio("Flower, 2 workers", "raypref, 2 actors", "≥ 5", "wall"),
            ),
            unit="round",
            wall=True,
        ),
        "judging": Row(
            "judging, 10 clients of 32 pairs of 30 to 68 tokens: embedded base",
            partial(measure_judging, Judging()),
            (Ratio("1 row", "base", "≤ 1.2"), Ratio("4 rows", "base", "≤ 1.2")),
            unit="comparison",
        ),
    }


def report(lines: Lines, chosen: dict[str, Row]) -> str:
    """The lines as two Markdown tables: what was measured, and how it compares."""
    times, compared = [], []
    for name, row in chosen.items():
        seen = list(dict.fromkeys(line["what"] for line in lines.all if line["row"] == name and "what" in line))
        scale, unit = (1.0, "s") if row.wall else (1000.0, "ms")
        for i, what in enumerate(seen):
            cells = [spread(scale * x for x in lines.of(name, what, m).values()) for m in ("cpu", "wall")]
            about = f"`{name}` {row.about}; {unit} a {row.unit}" if i == 0 else ""
            times.append((about, what, cells[0], cells[1] if row.wall else ""))
        for ratio in row.ratios:
            measure = " (wall)" if ratio.measure == "wall" else ""
            several = spread(ratios(lines, name, ratio))
            compared.append((f"`{name}`", f"{ratio.over} / {ratio.under}{measure}", several, ratio.goal))
    notes = [f"`{name}`: {note}" for name in chosen for note in lines.notes(name)]
    parts = [table(("what", "", "CPU", "wall"), times), table(("row", "ratio", "median (range)", "goal"), compared)]
    return "\n\n".join([*parts, "; ".join(notes)])


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv, "python benchmarks/speed.py", Options())
    known = rows()
    for name in options.rows:
        if name not in known:
            raise UserError(f"--rows: unknown row {name!r}{nearest(name, known)}")
    if options.runs < 1:
        raise UserError(f"--runs is {options.runs}; give 1 or more")
    runs = 1 if options.quick else options.runs
    options = replace(options, runs=runs, cache=options.cache.expanduser().absolute())
    torch.set_num_threads(1)
    chosen = {name: row for name, row in known.items() if name in (options.rows or known)}
    lines, began, here = Lines(options.out / "lines.jsonl"), time.monotonic(), machine()
    failed = []
    for name, row in chosen.items():
        console.note(f"{name}: {row.about}")
        try:
            row.measure(name, options, lines)
        except UserError as error:  # the others are still measured
            failed.append(name)
            lines.add(row=name, note=f"not measured: {error}")
            console.warn(str(error))
    minutes = (time.monotonic() - began) / 60
    text = f"{report(lines, chosen)}\n\n{here}, at the end {os.getloadavg()[0]:.1f}; {minutes:.0f} minutes"
    conclude(options.out, text)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(command))
