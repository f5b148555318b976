"""A run as a value: one frozen dataclass tree, from which everything else follows.

Beside each field stands the paper's symbol and place. Nothing here imports torch, ray or transformers, so that
`--help` answers at once. Cited papers: S1 and S2, see `raypref/__init__.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raypref.tools import checkpoint
from raypref.tools.errors import UserError as UserError
from raypref.tools.errors import nearest as nearest


@dataclass(frozen=True)
class DataConfig:
    """Where the preference pairs come from and how a client's pairs are split."""

    source: str = "synthetic"
    """`synthetic` (the embedded generator), a JSONL, JSON, CSV or Parquet file or a folder of them, or a hub id
    (`OWNER/NAME`, `OWNER/NAME:CONFIGURATION`, or `OWNER/NAME:FOLDER+FOLDER`). Pairs without people (`python -m
    raypref.data synthesize`) are dealt to the synthetic clients, or by `kinds`."""
    kinds: tuple[str, ...] = ()
    """Words in the names of files, or of folders, that tell which kind of pair they hold (S1 5.1: helpful, harmless):
    rows without people are dealt to clients that hold one kind each, which is then their group; `group_sizes` says how
    many. Files without such a word are left out. Empty: off."""
    group_sizes: tuple[int, ...] = (15, 15, 5, 5)
    """Synthetic or synthesized: clients in G1 to G4 (S2 2.3: 10/10/10/10 balanced, 15/15/5/5 imbalanced), or two
    numbers, for the two that wish the opposite on every axis. With `kinds`: clients of each kind (S1 5.1: 5/5, 25/25,
    50/50)."""
    pairs_per_client: int = 0
    """With `kinds`: most pairs that a client is dealt; 0: all there are, evenly (S1 does not say)."""
    pairs_per_axis: int = 100
    """Synthetic or synthesized: pairs each client holds on each style axis, all folds together (S2 2.3: 650)."""
    axes: tuple[str, ...] = ("education", "humor")
    """Synthetic or synthesized: the style axes whose combinations form the groups (S2 2.3)."""
    client_column: str = "client_id"
    """Column that names the person behind a choice; empty: all rows are one client's."""
    group_column: str = ""
    """Column with the true preference group, where it is known; empty: unknown (FL_target then refuses)."""
    prompt_column: str = "prompt"
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    split: str = "pair"
    """`pair`: a hash of the unordered pair decides its fold, for everybody; otherwise a column (such as `topic`) whose
    value decides it, so that test values are unseen in training."""
    validation: float = 0.16
    """Share of the pairs held out for validation. Fold sizes are approximate under hashing."""
    test: float = 0.16
    """Share of the pairs held out for testing."""
    exact_counts: tuple[int, int] = (0, 0)
    """Exact numbers of validation and test pairs a client (S2 2.3: 50, 50), drawn per client instead of by hash; pairs
    may then cross folds between people, which is counted and said. (0, 0): off."""
    min_rows: int = 1
    """Clients with fewer usable pairs than this are left out (and named by `python -m raypref.data check`)."""
    cover_column: str = ""
    """Column in whose every value a client must have `cover_min_rows` usable rows, or is left out; empty: off (S2 2.3:
    `split`, TL;DR's own train, valid1 and valid2, which decides who takes part but not our folds)."""
    cover_min_rows: int = 1
    """Usable rows that a client needs in each value of `cover_column` (S2 2.3: 100, which leaves 34 people)."""
    template: Literal["hh", "tldr", "short"] = "short"
    """Wording of the comparison prompt: `hh` is S1 D.1.1 verbatim, `tldr` asks about summaries, `short` is for tiny
    bases."""
    max_length: int = 512
    """Longest comparison in tokens; longer ones lose prompt text from the left, never a response or the mark."""


@dataclass(frozen=True)
class ModelConfig:
    """The frozen base and the LoRA adapter of the selector."""

    base: str = "embedded"
    """`embedded` (the tiny Qwen2 shipped with raypref), a local folder, or a hub id of a Qwen2, Llama, Gemma or Gemma 2
    causal LM (S2 A.2: Qwen/Qwen2-0.5B)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the frozen base; adapters are always float32 (S2 A.1: bfloat16 mixed precision)."""
    lora_r: int = 8
    """r (S2 section 5)."""
    lora_alpha: float = 16.0
    """α (S2 section 5); the update is scaled by α / r."""
    lora_dropout: float = 0.05
    """On the input of the adapter only, as in PEFT (S2 section 5)."""
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    """Adapted linear modules of every block (S2 section 5; FedBiscuit's released code differs: q, v)."""


@dataclass(frozen=True)
class OptimConfig:
    """A client's local optimizer: AdamW, fresh each round, constant learning rate (S2 section 5)."""

    learning_rate: float = 1e-3
    """Constant (S2 A.2: 1e-5 on Qwen2-0.5B; the tiny embedded base wants more)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """(β1, β2) (S2 A.2)."""
    weight_decay: float = 0.0
    """The papers do not say; PyTorch's AdamW default would be 0.01."""
    batch_size: int = 8
    """Pairs a step (S2 A.2: 16); a client with fewer pairs uses them all."""


@dataclass(frozen=True)
class FederationConfig:
    """The global phase."""

    rounds: int = 60
    """R (S2 A.2: 400; 200 in its section 3)."""
    cohort: int = 5
    """|S_r| = |G_r|, clients a round (S2 A.2)."""
    local_steps: int = 10
    """τ, optimizer steps of a selected client in a round (S2 A.2: 30)."""
    unseen: int = 0
    """Clients of each true group (of all clients, where groups are unknown), drawn by the seed, that take no part in
    the global phase and are only personalized and judged (S1 5.3: 5)."""


@dataclass(frozen=True)
class ExpertsConfig:
    """Methods that keep several models at the server."""

    K: int = 4
    """Experts (S2 A.2)."""
    T: int = 10
    """Rounds between two reassignments (S2 A.2: 20). FedGD: T must divide R/2; FedBiscuit: each expert's warm-up."""


@dataclass(frozen=True)
class FedGDConfig:
    """S2 section 4."""

    w: float = 0.6
    """Mixing coefficient of the experts' moving average (S2 4.1, A.2)."""
    phase2_start: Literal["random", "continue"] = "random"
    """φ^(R/2): a fresh LoRA initialization, or θ_g of phase 1 (S2 C.3, Table 7)."""


@dataclass(frozen=True)
class SoftFLConfig:
    """Soft-FL's orthogonal adapter start (S2 B.3)."""

    epsilon: float = 0.005
    """ε: a layer's update starts at ε times the Frobenius norm of its frozen weight."""
    jitter: float = 0.01
    """Expert k (from 0) starts (1 + jitter · k) times as large."""


@dataclass(frozen=True)
class VariationalConfig:
    """The variational selector (S1 section 4); used where `objective` is `variational`."""

    form: Literal["conditioned", "printed"] = "conditioned"
    """`printed`: Eq. 2 and Algorithm 2 as printed: the projection of z is added to the choice logits, and the posterior
    of a pair comes from that pair. `conditioned`: the projection of z weighs the responses' features, and the posterior
    comes from the client's other pairs."""
    lora: bool = False
    """Train the LoRA adapter, too, as the printed form must; without, only the latent modules, on features computed
    once."""
    adapted: bool = False
    """Features through the adapter instead of from the frozen base (S1 4.1: "the frozen base LLM"); needs `lora`."""
    responses: Literal["joint", "apart"] = "joint"
    """A response's features inside the comparison, as printed, or read on its own after its prompt."""
    linear: bool = True
    """Conditioned only: a linear path beside extractor, encoder and projection, the last two sharing it, so that z
    starts as a projection of the mean feature difference, by which alone pairs are told apart better than by chance."""
    pooling: Literal["mean", "attention"] = "mean"
    """Conditioned only: how the context pairs are summed up."""
    context: int = 0
    """Conditioned only: context pairs drawn a training step; 0: all the client's other training pairs."""
    context_marks: tuple[int, ...] = (1, 2, 4, 8, 16, 64)
    """Read-outs before any local step with z from so many of the client's training pairs only (all, where it has
    fewer)."""
    d: int = 32
    """Latent dimension (S1 Table 4)."""
    features: int = 64
    """F, width of the feature extractor, an MLP H -> F -> F (S1 does not say; 512 and `encoder` 256 make the modules
    the 0.9 M of 5.5 on Qwen2-0.5B)."""
    encoder: int = 64
    """E, width of the encoder, an MLP F -> E -> 2d."""
    M: int = 4
    """Prototypes: preference groups to tell apart (S1 5.1: 2, for helpful and harmless)."""
    beta: float = 0.001
    """β, weight of the KL (S1 Table 4: 0.01)."""
    lam: float = 0.1
    """λ, weight of the pull towards the prototype (S1 Table 4: 1)."""
    gamma: float = 0.1
    """γ, weight of the prototypes' orthonormality (S1 Table 4)."""
    tau: float = 1.0
    """τ, Gumbel-softmax temperature (S1 Table 4)."""
    scale: float = 5.0
    """s, the prototypes' radius (S1 Table 4)."""
    log_variance_max: float = 0.0
    """log σ²_max (S1 4.1 does not say it)."""
    logit_dropout: float = 0.5
    """p_logit: rate at which a comparison's base logits are dropped in training (S1 4.4: 0.5 on Qwen2-0.5B, 0 on
    Gemma-2B)."""
    peer_learning_rate: float = 0.1
    """Of the peer log-weights ℓ, which stay at the client (S1 does not say): at the adapter's rate they would not leave
    uniform within a round."""
    every: int = 10
    """Rounds between two read-outs of every client's posterior, beside the last; 0: none."""
    balanced: bool = True
    """Prototype labels by balanced k-means (S1 4.2), or by ordinary k-means."""


@dataclass(frozen=True)
class DPOConfig:
    """Direct preference optimization of a policy: FedDPO's, where `objective` is `dpo`, and that of conditional RLHF
    (S1 4.4)."""

    beta: float = 0.1
    """β of the implicit reward (S1 Table 4: reward coefficient)."""
    start: str = ""
    """A PEFT folder that the policy starts from; the reference is then the base with it, otherwise the base."""
    template: Literal["", "conversation", "helpful", "harmless", "general", "tldr", "short"] = ""
    """How a policy is asked: `conversation` is the history as it is (S1 D.1.2), `helpful`, `harmless` and `general` are
    S1 D.3; empty: what goes with `data.template` (conversation, tldr or short)."""


@dataclass(frozen=True)
class RLHFConfig:
    """Conditional RLHF on the server (S1 4.4, Algorithm 1, lines 15-23), by `python -m raypref.rlhf` after a run."""

    rounds: int = 30
    """Times that the policy is saved and told of (S1 Table 4: 50)."""
    local_steps: int = 10
    """Optimizer steps a round (S1 Table 4: 30)."""
    batch_size: int = 32
    """Prompts in one forward and backward pass, over all workers (S1 Table 4: 1)."""
    accumulation: int = 1
    """Such passes a step (S1 Table 4: 4 to 32)."""
    prompts: int = 0
    """Most training prompts that responses are generated for in a round, drawn anew each; 0: all (S1 Table 4: 50)."""
    generation_batch: int = 32
    """Prompts in one generation pass (S1 Table 4: 3)."""
    learning_rate: float = 5e-4
    """Of AdamW, at the start; it falls in a straight line to 0 (S1 Table 4: 1e-5 to 1e-4 by model)."""
    temperature: float = 0.7
    """Of the two responses to a prompt, and of those that are judged (S1 D.1.2)."""
    top_p: float = 1.0
    """(S1 D.1.2)"""
    max_new_tokens: int = 40
    """Longest response (S1 D.1.2: 512, "configurable")."""
    z: Literal["clients", "prior"] = "clients"
    """Of training: `clients`, the mean posteriors of those who took part (S1 Algorithm 1, line 17), or samples of their
    mixture prior by Gumbel-softmax."""
    samples: int = 30
    """Test prompts of a group that are answered for the judges (S1 Table 4); 0: all."""
    backend: Literal["local", "ray"] = "local"
    """`local`: in this process; `ray`: a Ray Train job of `workers` processes."""
    workers: int = 1
    """Processes that train the policy together, each on its share of every batch."""
    gpus_per_worker: float = 0.0
    """GPUs of such a process; above 0 the model runs on the GPU."""
    cpus_per_worker: float = 0.9
    """CPU share of such a process."""
    engine: Literal["torch", "deepspeed"] = "torch"
    """`deepspeed` needs `pip install raypref[deepspeed]`."""
    zero_stage: Literal[0, 1, 2, 3] = 2
    """ZeRO of DeepSpeed: what is partitioned over the workers (1: optimizer state, 2: gradients, 3: the base, too)."""


@dataclass(frozen=True)
class PersonalizationConfig:
    """Every client fine-tunes its initialization on its own pairs, with one optimizer state throughout (S2 2.1)."""

    marks: tuple[int, ...] = (0, 10, 20, 40)
    """Local steps t at which acc^t is read (S2: every 10 up to 80; up to 240 on TL;DR). Read-outs, not restarts."""
    learning_rate: float | None = None
    """None: the learning rate of the global phase."""


@dataclass(frozen=True)
class DiagnosticsConfig:
    """Gradient quotient and headroom (S2 2.2). A mark costs about what a client's personalization does."""

    marks: tuple[int, ...] = ()
    """Local steps t, some of `personalization.marks`, at which they are computed; 0 is the initialization (S2 Tables 1,
    2, 5); empty: nowhere."""
    eta: float | None = None
    """η of the plain gradient step; both quantities grow with it (S2 does not say it). None: the learning rate of the
    personalization."""


@dataclass(frozen=True)
class ClientsConfig:
    """Who trains, and on what. It changes where work runs, never what is computed beyond rounding."""

    backend: Literal["local", "ray"] = "local"
    """`local`: in this process, for debugging and small runs; `ray`: client actors and a server actor."""
    clients_per_actor: int = 0
    """Clients that share an actor, and with it one frozen base and one stacked pass; 1: every client is its own actor;
    0: all in one."""
    stack: int = 8
    """Most clients (or rows) in one stacked forward and backward pass."""
    gpus_per_actor: float = 0.0
    """GPU fraction of an actor; use 1/N. Above 0 the model runs on the GPU."""
    cpus_per_actor: float = 0.9
    """CPU share of an actor; with the server's 0.1 a one-actor run asks for one core."""
    server_cpus: float = 0.1
    """CPU share of the server actor, which mostly waits."""
    threads: int = 1
    """torch threads of a process that trains."""
    eval_batch: int = 64
    """Comparisons in one evaluation pass: as many as a CPU's cache holds (of the embedded base), more on a GPU."""
    pooled_workers: int = 1
    """Processes that train a pooled model (CL, Multi-CL) together, each on its share of every batch: above 1 by Ray
    Train, each asking for an actor's share on top of the client actors; it starts them anew for each of five blocks of
    steps, some ten seconds each. 1: a client actor."""


@dataclass(frozen=True)
class RunConfig:
    """One run. Two equal values give equal results; `key` names the value."""

    algorithm: str = "fedgd"
    """fedgd, fedavg, fl_target, fedgd_target, fedbiscuit, soft_fl, local, cl, multi_cl, fedvpl, fedvpl_ortho,
    fedvpl_prior or fedvpa_gp."""
    objective: Literal["choice", "variational", "dpo"] = "choice"
    """What a client minimizes: the binary selector's choice loss (S2), the variational selector's (S1), or that of a
    policy (DPO; with fedavg it is FedDPO, S1 5.1)."""
    seed: int = 0
    """Of everything random: synthetic data, initialization, cohorts, batches, slots, dropout."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    fedgd: FedGDConfig = field(default_factory=FedGDConfig)
    soft_fl: SoftFLConfig = field(default_factory=SoftFLConfig)
    variational: VariationalConfig = field(default_factory=VariationalConfig)
    dpo: DPOConfig = field(default_factory=DPOConfig)
    rlhf: RLHFConfig = field(default_factory=RLHFConfig)
    personalization: PersonalizationConfig = field(default_factory=PersonalizationConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    clients: ClientsConfig = field(default_factory=ClientsConfig)

    @property
    def method(self) -> str:
        """What folders and lines call it: the algorithm, with the objective where it is not its usual one."""
        if (self.algorithm, self.objective) == ("fedavg", "dpo"):
            return "feddpo"
        own = "variational" if self.algorithm.startswith("fedvp") else "choice"
        return self.algorithm if self.objective == own else f"{self.algorithm}-{self.objective}"

    @property
    def key(self) -> str:
        """Eight hex digits that name what is computed (where it runs, `clients`, left out but for the stacking)."""
        value = to_dict(self)
        for where in ("backend", "gpus_per_actor", "cpus_per_actor", "server_cpus", "threads"):
            del value["clients"][where]
        if value["clients"]["pooled_workers"] == 1:  # several draw dropout masks of their own
            del value["clients"]["pooled_workers"]
        del value["rlhf"]  # what may follow
        if self.objective == "choice":  # younger than the runs of which it is true
            del value["objective"]
        for section in {"variational", "dpo"} - {self.objective}:  # they have no part in it
            del value[section]
        for section, name in (("federation", "unseen"), ("data", "kinds"), ("data", "pairs_per_client")):
            if not value[section][name]:  # younger than the runs of which it is true
                del value[section][name]
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def to_dict(config: Any) -> dict[str, Any]:
    """The tree as plain JSON-able values (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(value: Mapping[str, Any]) -> RunConfig:
    """Inverse of `to_dict`. Missing fields take their defaults; unknown ones raise `UserError`."""
    return override(RunConfig(), flatten(value))


def read_config(folder: Path) -> RunConfig:
    """What a run or a policy was configured with, from its `config.json`. Raises `UserError` as
    `raypref.tools.checkpoint.read_json` does."""
    return from_dict(checkpoint.read_json(folder / "config.json", "algorithm", "data"))


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys: {"experts": {"K": 4}} -> {"experts.K": 4}."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat.update(flatten(item, f"{prefix}{name}."))
        else:
            flat[prefix + name] = item
    return flat


def override(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """A new value with dotted keys replaced: `override(c, {"experts.K": 3})`.

    Raises `UserError` on an unknown key (naming the nearest) or a value of the wrong type.
    """
    known = flatten(dataclasses.asdict(config))
    for dotted, value in values.items():
        if dotted not in known:
            raise UserError(f"unknown field {dotted!r}{nearest(dotted, known)}")
        config = _replace(config, dotted.split("."), value, dotted)
    return config


def _replace(node: Any, path: list[str], value: Any, dotted: str) -> Any:
    name, *rest = path
    if rest:
        return dataclasses.replace(node, **{name: _replace(getattr(node, name), rest, value, dotted)})
    return dataclasses.replace(node, **{name: _coerce(value, typing.get_type_hints(type(node))[name], dotted)})


def _coerce(value: Any, hint: Any, dotted: str) -> Any:
    """`value` as the annotated type, or `UserError`. Accepts JSON's forms (lists for tuples, ints for floats)."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{dotted} is {value!r}; it must be one of {', '.join(map(repr, args))}")
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _coerce(value, next(a for a in args if a is not type(None)), dotted)
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(inner) == len(value):
            return tuple(_coerce(v, t, dotted) for v, t in zip(value, inner, strict=True))
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"{dotted} is {value!r}; it must be {getattr(hint, '__name__', None) or hint}")


def _validate_variational(config: RunConfig) -> None:
    v = config.variational
    for name, number in (("d", v.d), ("features", v.features), ("encoder", v.encoder), ("M", v.M)):
        if number < 1:
            raise UserError(f"variational.{name} is {number}; it must be at least 1")
    for name, value in (("beta", v.beta), ("lam", v.lam), ("gamma", v.gamma)):
        if value < 0:
            raise UserError(f"variational.{name} is {value:g}; it must not be negative")
    for name, value in (("tau", v.tau), ("scale", v.scale), ("peer_learning_rate", v.peer_learning_rate)):
        if value <= 0:
            raise UserError(f"variational.{name} is {value:g}; it must be above 0")
    if not 0 <= v.logit_dropout < 1:
        raise UserError(f"variational.logit_dropout is {v.logit_dropout}; it must be in [0, 1)")
    for name, count in (("context", v.context), ("every", v.every)):
        if count < 0:
            raise UserError(f"variational.{name} is {count}; it must not be negative")
    if list(v.context_marks) != sorted({m for m in v.context_marks if m > 0}):
        raise UserError(f"variational.context_marks is {v.context_marks}; give rising numbers of pairs such as 1 4 16")
    if v.log_variance_max < -20:
        raise UserError(f"variational.log_variance_max is {v.log_variance_max:g}; it must be at least -20")
    if v.adapted and not v.lora:
        raise UserError("variational.adapted reads features through the adapter; it needs variational.lora")
    if v.form == "printed" and (not v.lora or v.pooling != "mean" or v.context):
        raise UserError(
            "variational.form printed learns by its adapter alone and sums up no context: add --variational.lora, and "
            "leave variational.pooling and context as they are"
        )
    if config.diagnostics.marks:
        raise UserError("diagnostics.marks are S2's, of objective choice; leave them empty with the variational one")
    if config.algorithm == "soft_fl":
        raise UserError("soft_fl starts from orthogonal LoRA adapters and has no latent modules; take objective choice")


def _validate_policy(config: RunConfig) -> None:
    """DPO's sections: its own, and that of what may follow a run."""
    r = config.rlhf
    for name, value in (
        ("dpo.beta", config.dpo.beta),
        ("rlhf.learning_rate", r.learning_rate),
        ("rlhf.temperature", r.temperature),
    ):
        if value <= 0:
            raise UserError(f"{name} is {value:g}; it must be above 0")
    if not 0 < r.top_p <= 1:
        raise UserError(f"rlhf.top_p is {r.top_p:g}; it must be in (0, 1]")
    for name, number in (("prompts", r.prompts), ("samples", r.samples)):
        if number < 0:
            raise UserError(f"rlhf.{name} is {number}; it must not be negative")
    if r.batch_size % r.workers:
        raise UserError(
            f"rlhf.batch_size is {r.batch_size}, which {r.workers} workers cannot share evenly; give a multiple of "
            f"rlhf.workers, such as {-(-r.batch_size // r.workers) * r.workers}"
        )
    if config.objective != "dpo":
        return
    if config.diagnostics.marks:
        raise UserError("diagnostics.marks are S2's, of objective choice; leave them empty with dpo")
    if config.algorithm == "soft_fl" and config.dpo.start:
        raise UserError("soft_fl starts from orthogonal adapters of its own; leave dpo.start empty")


def validate(config: RunConfig) -> None:
    """What can be said without the data: raises `UserError` with one line that says what to do."""
    f, e, p, o, c = config.federation, config.experts, config.personalization, config.optim, config.clients
    for dotted, value in flatten(dataclasses.asdict(config)).items():
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
            raise UserError(f"{dotted} is {value}; it must be a finite number")
    for name, number in (
        ("federation.rounds", f.rounds),
        ("federation.cohort", f.cohort),
        ("federation.local_steps", f.local_steps),
        ("optim.batch_size", o.batch_size),
        ("experts.K", e.K),
        ("experts.T", e.T),
        ("clients.stack", config.clients.stack),
        ("clients.threads", config.clients.threads),
        ("clients.eval_batch", config.clients.eval_batch),
        ("clients.pooled_workers", config.clients.pooled_workers),
        ("model.lora_r", config.model.lora_r),
        ("data.pairs_per_axis", config.data.pairs_per_axis),
        ("data.min_rows", config.data.min_rows),
        ("data.cover_min_rows", config.data.cover_min_rows),
        ("data.max_length", config.data.max_length),
        ("rlhf.rounds", config.rlhf.rounds),
        ("rlhf.local_steps", config.rlhf.local_steps),
        ("rlhf.batch_size", config.rlhf.batch_size),
        ("rlhf.accumulation", config.rlhf.accumulation),
        ("rlhf.generation_batch", config.rlhf.generation_batch),
        ("rlhf.max_new_tokens", config.rlhf.max_new_tokens),
        ("rlhf.workers", config.rlhf.workers),
    ):
        if number < 1:
            raise UserError(f"{name} is {number}; it must be at least 1")
    if config.rlhf.workers > 1 and config.rlhf.backend == "local":
        raise UserError(
            f"rlhf.workers is {config.rlhf.workers}, but rlhf.backend local is one process; add --rlhf.backend ray"
        )
    if list(p.marks) != sorted(set(p.marks)) or not p.marks or p.marks[0] < 0:
        raise UserError(f"personalization.marks is {p.marks}; give rising step counts such as 0 10 20")
    if list(config.diagnostics.marks) != sorted(set(config.diagnostics.marks) & set(p.marks)):
        raise UserError(
            f"diagnostics.marks is {config.diagnostics.marks}; give some of personalization.marks {p.marks}, rising"
        )
    if config.diagnostics.eta is not None and config.diagnostics.eta <= 0:
        raise UserError(f"diagnostics.eta is {config.diagnostics.eta}; it must be above 0")
    if config.soft_fl.epsilon <= 0 or config.soft_fl.jitter < 0:
        raise UserError("soft_fl.epsilon must be above 0 and soft_fl.jitter not negative")
    if not 0 <= config.model.lora_dropout < 1:
        raise UserError(f"model.lora_dropout is {config.model.lora_dropout}; it must be in [0, 1)")
    if not 0 < config.fedgd.w <= 1:
        raise UserError(f"fedgd.w is {config.fedgd.w}; it must be in (0, 1]")
    if f.unseen < 0:
        raise UserError(f"federation.unseen is {f.unseen}; it must not be negative")
    if config.seed < 0:
        raise UserError(f"seed is {config.seed}; it must not be negative")
    if not config.model.lora_targets or config.model.lora_alpha <= 0:
        raise UserError("model.lora_targets must name at least one module, and model.lora_alpha must be above 0")
    if not all(0 <= beta < 1 for beta in o.betas) or o.weight_decay < 0:
        raise UserError("optim.betas must be in [0, 1) and optim.weight_decay not negative")
    if c.gpus_per_actor < 0 or c.cpus_per_actor < 0 or c.server_cpus < 0:
        raise UserError("clients.gpus_per_actor, cpus_per_actor and server_cpus must not be negative")
    if o.learning_rate <= 0 or (p.learning_rate is not None and p.learning_rate <= 0):
        raise UserError("learning rates must be above 0")
    if not (config.data.validation > 0 and config.data.test > 0 and config.data.validation + config.data.test < 1):
        raise UserError("data.validation and data.test must be above 0 and leave something for training")
    if config.data.cover_min_rows > 1 and not config.data.cover_column:
        raise UserError("data.cover_min_rows counts rows in each value of data.cover_column; name that column, too")
    d = config.data
    if d.kinds:
        if d.source == "synthetic":
            raise UserError("data.kinds tells files apart, and data.source is synthetic; leave data.kinds empty")
        if not all(kind.strip() for kind in d.kinds) or len(set(d.kinds)) < len(d.kinds):
            raise UserError(f"data.kinds is {d.kinds}; give different words, such as helpful harmless")
        if len(d.group_sizes) != len(d.kinds) or min(d.group_sizes) < 0 or not any(d.group_sizes):
            raise UserError(
                f"data.group_sizes is {d.group_sizes}; with data.kinds {d.kinds} it must say how many clients hold "
                f"each, such as {' '.join(['5'] * len(d.kinds))}"
            )
    if d.pairs_per_client < 0 or (d.pairs_per_client and not d.kinds):
        raise UserError(
            f"data.pairs_per_client is {d.pairs_per_client}; it must be 0 without data.kinds, else not negative"
        )
    if config.objective == "variational":
        _validate_variational(config)
    _validate_policy(config)
    if config.clients.clients_per_actor < 0:
        raise UserError(f"clients.clients_per_actor is {config.clients.clients_per_actor}; 0 means all clients in one")
