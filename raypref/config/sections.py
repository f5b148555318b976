"""The sections that every run has: data, base, optimizer, rounds, personalization, where it runs, and what may follow.

Beside each field stands the paper's symbol and place (S1 and S2, see `raypref/__init__.py`), and its range where it has
one. The parameters of a method or an objective stand in its own file, and join these as sections of the run's
configuration (`raypref.config.tree`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import tyro

from raypref.config.fields import setting
from raypref.tools.errors import UserError

GENERATED = ("synthetic", "graded")
"""Sources that are made here, of phrases whose styles are known."""


@dataclass(frozen=True)
class GradedConfig:
    """`data.source graded`: mixed answers, individual wishes, noisy labels (docs/data.md says how these were chosen).

    Its clients are as `data.axes` and `data.group_sizes` say.
    """

    wishes: tuple[str, ...] = ()
    """What each group wishes, a digit an axis: 1 its first pole, 2 its second, 0 neither, such as `10 20` for groups
    that oppose each other on the first axis alone; 2 to 16 groups. Empty: all ways to wish a pole of every axis."""
    train: tuple[int, int] = setting((20, 200), least=1)
    """Fewest and most training pairs a client; within a group they rise by rank, each by about the same factor."""
    validation: int = setting(10, least=1)
    """Validation pairs a client."""
    test: int = setting(200, least=1)
    """Test pairs a client, of topics that no other pair has."""
    sentences: int = setting(1, least=1)
    """Of an answer."""
    temperature: float = setting(0.65, above=0)
    """A client chooses by σ(margin / temperature); the larger, the noisier."""
    spread: float = setting(0.4, least=0)
    """Of the lognormal strength with which a client has its group's wish on an axis."""
    noise: float = setting(0.5, least=0)
    """Standard deviation of what a client wishes by itself, on every axis."""


@dataclass(frozen=True)
class DataConfig:
    """Where the preference pairs come from and how a client's pairs are split."""

    source: str = "synthetic"
    """`synthetic`, also called `named` (the embedded generator: an answer is in one style), `graded` (the same phrases,
    mixed answers: a benchmark that methods can lose), a JSONL, JSON, CSV or Parquet file or a folder of them, or a hub
    id (`OWNER/NAME`, `OWNER/NAME:CONFIGURATION`, with commas for several, or `OWNER/NAME:FOLDER+FOLDER`). Pairs without
    people (`python -m raypref.data synthesize`) are dealt to the synthetic clients, or by `kinds`."""
    kinds: tuple[str, ...] = setting((), neutral=())
    """Words in the names of files, or of folders, that tell which kind of pair they hold (S1 5.1: helpful, harmless):
    rows without people are dealt to clients that hold one kind each, which is then their group; `group_sizes` says how
    many. Files without such a word are left out. Empty: off."""
    group_sizes: tuple[int, ...] = (15, 15, 5, 5)
    """Generated or synthesized: clients in G1 to G4 (S2 2.3: 10/10/10/10 balanced, 15/15/5/5 imbalanced), or two
    numbers, for the two that wish the opposite on every axis. With `kinds`: clients of each kind (S1 5.1: 5/5, 25/25,
    50/50)."""
    pairs_per_client: int = setting(0, neutral=0, least=0)
    """With `kinds`: most pairs that a client is dealt; 0: all there are, evenly (S1 does not say)."""
    pairs_per_axis: int = setting(100, least=1)
    """Synthetic or synthesized: pairs each client holds on each style axis, all folds together (S2 2.3: 650)."""
    axes: tuple[str, ...] = ("education", "humor")
    """Generated or synthesized: the style axes whose combinations form the groups (S2 2.3)."""
    client_column: str = "client_id"
    """Column that names the person behind a choice; empty: all rows are one client's."""
    annotator_columns: tuple[str, ...] = setting((), neutral=())
    """Columns of a table with `response1` and `response2` that hold a person's votes each: 1, 2, or 0 for a tie; the
    column's name is the person's. Empty: all columns that hold nothing but votes."""
    group_column: str = ""
    """Column with the true preference group, where it is known; empty: unknown (FL_target then refuses)."""
    prompt_column: str = "prompt"
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    split: str = "pair"
    """`pair`: a hash of the unordered pair decides its fold, for everybody; otherwise a column (such as `topic`) whose
    value decides it, so that test values are unseen in training."""
    fold_column: str = setting("", neutral="")
    """Column that says of every row in which fold it is: `train`, `validation` or `test` (also `training`, `val`,
    `valid` and `dev`), as others have cut them. `validation` and `test` beneath are then without effect. Empty: off."""
    validation: float = setting(0.16, above=0, below=1)
    """Share of the pairs held out for validation. Fold sizes are approximate under hashing."""
    test: float = setting(0.16, above=0, below=1)
    """Share of the pairs held out for testing."""
    exact_counts: tuple[int, int] = setting((0, 0), least=0)
    """Exact numbers of validation and test pairs a client (S2 2.3: 50, 50), drawn per client instead of by hash; pairs
    may then cross folds between people, which is counted and said. (0, 0): off."""
    shuffled: bool = setting(False, neutral=False)
    """A control: choices are dealt to people at random, each as many as before, anew by the seed. What a method then
    still gains from personalization is not people's differences."""
    min_rows: int = setting(1, least=1)
    """Clients with fewer usable pairs than this are left out (and named by `python -m raypref.data check`)."""
    cover_column: str = ""
    """Column in whose every value a client must have `cover_min_rows` usable rows, or is left out; empty: off (S2 2.3:
    `split`, TL;DR's own train, valid1 and valid2, which decides who takes part but not our folds)."""
    cover_min_rows: int = setting(1, least=1)
    """Usable rows that a client needs in each value of `cover_column` (S2 2.3: 100, which leaves 34 people)."""
    template: Literal["hh", "tldr", "short"] = "short"
    """Wording of the comparison prompt: `hh` is S1 D.1.1 verbatim, `tldr` asks about summaries, `short` is for tiny
    bases."""
    max_length: int = setting(512, least=1)
    """Longest comparison in tokens; longer ones lose prompt text from the left, never a response or the mark."""
    digest: Annotated[str, tyro.conf.Suppress] = setting("", neutral="")
    """Of the rows in `source`, where that is a file or a folder; filled in when a run starts. It takes the place of
    `source` in a run's key, so that moving a folder renames nothing."""
    graded: GradedConfig = field(default_factory=GradedConfig)

    def __post_init__(self) -> None:
        if self.source == "named":  # one source, one key
            object.__setattr__(self, "source", "synthetic")

    @property
    def generated(self) -> bool:
        """Whether the pairs are made here, of phrases whose styles are known."""
        return self.source in GENERATED

    def check(self) -> None:
        """`UserError` where fields do not go together."""
        if self.validation + self.test >= 1:
            raise UserError("data.validation and data.test must be above 0 and leave something for training")
        if self.cover_min_rows > 1 and not self.cover_column:
            raise UserError("data.cover_min_rows counts rows in each value of data.cover_column; name that column, too")
        if self.kinds:
            if self.generated:
                raise UserError(
                    f"data.kinds tells files apart, and data.source is {self.source}; leave data.kinds empty"
                )
            if not all(kind.strip() for kind in self.kinds) or len(set(self.kinds)) < len(self.kinds):
                raise UserError(f"data.kinds is {self.kinds}; give different words, such as helpful harmless")
            sizes = self.group_sizes
            if len(sizes) != len(self.kinds) or min(sizes) < 0 or not any(sizes):
                raise UserError(
                    f"data.group_sizes is {sizes}; with data.kinds {self.kinds} it must say how many clients hold "
                    f"each, such as {' '.join(['5'] * len(self.kinds))}"
                )
        elif self.pairs_per_client:
            raise UserError(
                f"data.pairs_per_client is {self.pairs_per_client}; it must be 0 without data.kinds, else not negative"
            )
        if self.source == "graded":
            if self.graded.train[0] > self.graded.train[1]:
                raise UserError(f"data.graded.train is {self.graded.train}; give the fewest pairs first, then the most")
            off = {"split": "pair", "exact_counts": (0, 0), "fold_column": ""}
            for name in (name for name, value in off.items() if getattr(self, name) != value):
                raise UserError(f"data.{name} cuts folds, and data.source graded has its own; set data.graded.test")


@dataclass(frozen=True)
class ModelConfig:
    """The frozen base and the LoRA adapter of the selector."""

    base: str = "embedded"
    """`embedded` (the tiny Qwen2 shipped with raypref), a local folder, or a hub id of a Qwen2, Llama, Gemma or Gemma 2
    causal LM (S2 A.2: Qwen/Qwen2-0.5B)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the frozen base; adapters are always float32 (S2 A.1: bfloat16 mixed precision)."""
    lora_r: int = setting(8, least=1)
    """r (S2 section 5)."""
    lora_alpha: float = setting(16.0, above=0)
    """α (S2 section 5); the update is scaled by α / r."""
    lora_dropout: float = setting(0.05, least=0, below=1)
    """On the input of the adapter only, as in PEFT (S2 section 5)."""
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    """Adapted linear modules of every block (S2 section 5; FedBiscuit's released code differs: q, v)."""
    feature_cache: str = setting("", part="where")
    """Folder where what the frozen base reads once is kept for all runs; empty: RAYPREF_FEATURES, or else
    ~/.cache/raypref/features."""

    def check(self) -> None:
        """`UserError` where there is nothing to adapt."""
        if not self.lora_targets:
            raise UserError("model.lora_targets must name at least one module")


@dataclass(frozen=True)
class OptimConfig:
    """A client's local optimizer: AdamW, fresh each round, constant learning rate (S2 section 5)."""

    learning_rate: float = setting(1e-3, above=0)
    """Constant (S2 A.2: 1e-5 on Qwen2-0.5B; the tiny embedded base wants more)."""
    betas: tuple[float, float] = setting((0.9, 0.95), least=0, below=1)
    """(β1, β2) (S2 A.2)."""
    weight_decay: float = setting(0.0, least=0)
    """The papers do not say; PyTorch's AdamW default would be 0.01."""
    batch_size: int = setting(8, least=1)
    """Pairs a step (S2 A.2: 16); a client with fewer pairs uses them all."""


@dataclass(frozen=True)
class FederationConfig:
    """The global phase."""

    rounds: int = setting(60, least=1)
    """R (S2 A.2: 400; 200 in its section 3)."""
    cohort: int = setting(5, least=1)
    """|S_r| = |G_r|, clients a round (S2 A.2)."""
    local_steps: int = setting(10, least=1)
    """τ, optimizer steps of a selected client in a round (S2 A.2: 30)."""
    unseen: int = setting(0, neutral=0, least=0)
    """Clients of each true group (of all clients, where groups are unknown), drawn by the seed, that take no part in
    the global phase and are only personalized and judged (S1 5.3: 5)."""
    dropout: float = setting(0.0, neutral=0.0, least=0, below=1)
    """Probability that a client of a cohort does not answer, by the seed, the round and the client. It is left out of
    what is averaged and of what it is divided by."""
    least_answers: int = setting(1, neutral=1, least=1)
    """Clients of a cohort that the server waits for, whoever drops out."""


@dataclass(frozen=True)
class PersonalizationConfig:
    """Every client fine-tunes its initialization on its own pairs, with one optimizer state throughout (S2 2.1)."""

    marks: tuple[int, ...] = (0, 10, 20, 40)
    """Local steps t at which acc^t is read (S2: every 10 up to 80; up to 240 on TL;DR). Read-outs, not restarts."""
    learning_rate: float | None = setting(None, above=0)
    """None: the learning rate of the global phase."""

    def check(self) -> None:
        """`UserError` where the marks do not rise."""
        if list(self.marks) != sorted(set(self.marks)) or not self.marks or self.marks[0] < 0:
            raise UserError(f"personalization.marks is {self.marks}; give rising step counts such as 0 10 20")


@dataclass(frozen=True)
class DiagnosticsConfig:
    """Gradient quotient and headroom (S2 2.2). A mark costs about what a client's personalization does."""

    marks: tuple[int, ...] = setting((), part="shown")
    """Local steps t, some of `personalization.marks`, at which they are computed; 0 is the initialization (S2 Tables 1,
    2, 5); empty: nowhere."""
    eta: float | None = setting(None, part="shown", above=0)
    """η of the plain gradient step; both quantities grow with it (S2 does not say it). None: the learning rate of the
    personalization."""


@dataclass(frozen=True)
class ClientsConfig:
    """Who trains, and on what. It changes where work runs, never what is computed beyond rounding."""

    backend: Literal["local", "ray"] = setting("local", part="where")
    """`local`: in this process, for debugging and small runs; `ray`: client actors and a server actor."""
    clients_per_actor: int = setting(0, part="rounding", least=0)
    """Clients that share an actor, and with it one frozen base and one stacked pass; 1: every client is its own actor;
    0: all in one."""
    stack: int = setting(8, part="rounding", least=1)
    """Most clients (or rows) in one stacked forward and backward pass."""
    gpus_per_actor: float = setting(0.0, part="where", least=0)
    """GPU fraction of an actor; use 1/N. Above 0 the model runs on the GPU."""
    cpus_per_actor: float = setting(0.9, part="where", least=0)
    """CPU share of an actor; with the server's 0.1 a one-actor run asks for one core."""
    server_cpus: float = setting(0.1, part="where", least=0)
    """CPU share of the server actor, which mostly waits."""
    threads: int = setting(1, part="where", least=1)
    """torch threads of a process that trains."""
    restarts: int = setting(3, part="where", least=0)
    """Times that a run goes on by itself where an actor or a node is lost, from the last round that was saved: to the
    same bits. A trial of a sweep also starts again where its process is."""
    recompute: bool = setting(False, part="where")
    """Keep each block's input alone for the backward pass, which runs the block again: the same bits in a fraction of
    the memory and a third more time."""
    wait: float = setting(0.0, part="where", least=0)
    """Minutes to wait for nodes that people add to a cluster that could not hold the run. For an autoscaler's nodes it
    waits by itself."""
    eval_batch: int = setting(64, part="rounding", least=1)
    """Comparisons in one evaluation pass: as many as a CPU's cache holds (of the embedded base), more on a GPU."""
    pooled_workers: int = setting(1, part="rounding", neutral=1, least=1)
    """Processes that train a pooled model (CL, Multi-CL) together, each on its share of every batch: above 1 by Ray
    Train, each asking for an actor's share on top of the client actors; it starts them anew for each of five blocks of
    steps, some ten seconds each. 1: a client actor."""


@dataclass(frozen=True)
class RLHFConfig:
    """Conditional RLHF on the server (S1 4.4, Algorithm 1, lines 15-23), by `python -m raypref.rlhf` after a run."""

    follows: ClassVar[bool] = True
    rounds: int = setting(30, least=1)
    """Times that the policy is saved, and its numbers are shown (S1 Table 4: 50)."""
    local_steps: int = setting(10, least=1)
    """Optimizer steps a round (S1 Table 4: 30)."""
    batch_size: int = setting(32, least=1)
    """Prompts in one forward and backward pass, over all workers (S1 Table 4: 1)."""
    accumulation: int = setting(1, least=1)
    """Such passes a step (S1 Table 4: 4 to 32)."""
    prompts: int = setting(0, least=0)
    """Most training prompts that responses are generated for in a round, drawn anew each; 0: all (S1 Table 4: 50)."""
    generation_batch: int = setting(32, part="answers", least=1)
    """Prompts in one generation pass (S1 Table 4: 3)."""
    learning_rate: float = setting(5e-4, above=0)
    """Of AdamW, at the start; it falls in a straight line to 0 (S1 Table 4: 1e-5 to 1e-4 by model)."""
    temperature: float = setting(0.7, part="answers", above=0)
    """Of the two responses to a prompt, and of those that are judged (S1 D.1.2)."""
    top_p: float = setting(1.0, part="answers", above=0, most=1)
    """(S1 D.1.2)"""
    max_new_tokens: int = setting(40, part="answers", least=1)
    """Longest response (S1 D.1.2: 512, "configurable")."""
    z: Literal["clients", "prior"] = "clients"
    """Of training: `clients`, the mean posteriors of those who took part (S1 Algorithm 1, line 17), or samples of their
    mixture prior by Gumbel-softmax."""
    samples: int = setting(30, part="answers", least=0)
    """Test prompts of a group that are answered for the judges (S1 Table 4); 0: all."""
    backend: Literal["local", "ray"] = setting("local", part="where")
    """`local`: in this process; `ray`: a Ray Train job of `workers` processes."""
    workers: int = setting(1, least=1)
    """Processes that train the policy together, each on its share of every batch."""
    gpus_per_worker: float = setting(0.0, part="where", least=0)
    """GPUs of such a process; above 0 the model runs on the GPU."""
    cpus_per_worker: float = setting(0.9, part="where", least=0)
    """CPU share of such a process."""
    recompute: bool = setting(False, part="where")
    """As `clients.recompute`, of the policy."""
    wait: float = setting(0.0, part="where", least=0)
    """Minutes to wait for nodes, as `clients.wait`."""
    engine: Literal["torch", "deepspeed"] = setting("torch", part="where")
    """`deepspeed` needs `pip install raypref[deepspeed]`."""
    zero_stage: Literal[0, 1, 2, 3] = setting(2, part="where")
    """ZeRO of DeepSpeed: what is partitioned over the workers (1: optimizer state, 2: gradients, 3: the base, too)."""

    def check(self) -> None:
        """`UserError` where the workers cannot share the work."""
        if self.workers > 1 and self.backend == "local":
            raise UserError(
                f"rlhf.workers is {self.workers}, but rlhf.backend local is one process; add --rlhf.backend ray"
            )
        if self.recompute and self.engine == "deepspeed" and self.zero_stage == 3:
            raise UserError(
                "rlhf.recompute and rlhf.zero_stage 3 do not go together: a block that runs again does not find the "
                "weights that ZeRO has let go; take --rlhf.zero-stage 2, or --rlhf.no-recompute"
            )
        if self.batch_size % self.workers:
            raise UserError(
                f"rlhf.batch_size is {self.batch_size}, which {self.workers} workers cannot share evenly; give a "
                f"multiple of rlhf.workers, such as {-(-self.batch_size // self.workers) * self.workers}"
            )
