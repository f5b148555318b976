"""The folder of one run: what is saved while it runs, and what it leaves when it is done.

config.json                  the configuration
data.json                    a digest of the data as it was read
state.safetensors            state after the last round, with its round, budget and configuration key inside
records.jsonl                a line a round: metrics, budget, what left clients, group assignment where it changed
restarts.json                how often it went on by itself after an actor or a node was lost
reports.jsonl                in a sweep that asks for it: validation of a few clients at intervals
latent.npz                   with the variational objective: the clients' posteriors over rounds
initialization.safetensors   what every client starts its personalization from
clients/NNN.safetensors      a stack of personalized clients: rows and curves
result.json                  the result; a run is finished when it is there
ledger.csv, ledger.md        what has left clients, by round and in all (`raypref.experiment.publish`)
adapters/                    the same parameters as PEFT folders
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch

from raypref.algorithms.base import State
from raypref.clients.ledger import SERVER, Entries, named
from raypref.clients.protocol import Usage
from raypref.clients.seen import unseen
from raypref.clients.work import Personalized
from raypref.config import RunConfig, UserError, flatten, from_dict, read_config, registry, to_dict
from raypref.data.encode import EncodedFederation
from raypref.evaluation.curve import adjusted_rand_index
from raypref.evaluation.latent import Latent
from raypref.evaluation.runs import FinishedRun
from raypref.models.identity import base_identity
from raypref.models.layout import HEAD, Layout
from raypref.tools import checkpoint, console


class Left(NamedTuple):
    """A line of the ledger."""

    phase: str
    """`start`, `round`, `reading` (of a sweep, between rounds), `initialization` or `personalization`."""
    round: int
    """After how many rounds it was counted."""
    kind: str
    clients: int
    """How many times a client sent something of it."""
    bytes: int


class Store:
    """Reads and writes a run's folder. Raises `UserError` where it holds another configuration's run."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.algorithm = registry.algorithm(config.algorithm)
        self.restarts = 0
        """Times that the run went on by itself after an actor or a node was lost."""
        if (folder / "config.json").exists():
            other = read_config(folder)
            if other.key != config.key:
                raise UserError(f"{folder} holds a run of another configuration ({other.key}); choose another --out")

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()

    def result(self) -> dict[str, Any]:
        return checkpoint.read_json(self.folder / "result.json", "algorithm", "clients")

    def resume(self, data: str) -> tuple[State | None, Usage, list[int]]:
        """The last saved state, the budget spent by then, and the clients already personalized.

        data: the digest of the encoded data; `UserError` where what was saved was trained on other data.
        """
        digest, restarts = self.folder / "data.json", self.folder / "restarts.json"
        self.restarts = checkpoint.read_json(restarts, "restarts")["restarts"] if restarts.exists() else 0
        if digest.exists() and checkpoint.read_json(digest)["digest"] != data:
            raise UserError(f"the data changed since {self.folder} was begun; leave --resume out to start anew")
        checkpoint.write_json(self.folder / "config.json", to_dict(self.config))
        checkpoint.write_json(digest, {"digest": data})
        state, used = None, Usage()
        if (self.folder / "state.safetensors").exists():
            tensors, values = checkpoint.load(self.folder / "state.safetensors")
            used = Usage(**values.pop("used"))
            state = checkpoint.put_together(self.algorithm.state, tensors, values)
        done = [c for file in self._stacks() for c in checkpoint.load(file)[0]["clients"].tolist()]
        # A round whose line was written but whose state was not will run again and be written again.
        kept = [line for line in self.lines() if state is not None and line["round"] <= state.round]
        checkpoint.write_lines(self.folder / "records.jsonl", kept)
        if read := self.reports():
            checkpoint.write_lines(self.folder / "reports.jsonl", read)
        return state, used, done

    def restarted(self) -> None:
        """Count one more."""
        self.restarts += 1
        checkpoint.write_json(self.folder / "restarts.json", {"restarts": self.restarts})

    def started(self, state: State, left: Entries) -> None:
        """Record the first groups, and what has left clients before any round."""
        if not self.lines():
            self._append({"round": state.round, "assignment": self.algorithm.groups(state), "left": left})

    def round(
        self,
        state: State,
        metrics: dict[str, float],
        used: Usage,
        seconds: float,
        left: Entries,
        latent: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Save a round: its record first, then the state, so that a state never lacks its records."""
        if latent is not None:
            path, now = self.folder / "latent.npz", Latent.of(state.round, **latent)
            (Latent.load(path).append(now) if path.exists() else now).save(path)
        self._append(
            {
                "round": state.round,
                "metrics": metrics,
                "used": dataclasses.asdict(used),
                "seconds": round(seconds, 3),
                "assignment": self.algorithm.groups(state),
                "left": left,
            }
        )
        tensors, values = checkpoint.take_apart(state)
        checkpoint.save(self.folder / "state.safetensors", tensors, values | {"used": dataclasses.asdict(used)})

    def initialization(self, rows: torch.Tensor, left: Entries) -> None:
        """Save what clients start their personalization from: [D], or [C, D]."""
        checkpoint.save(self.folder / "initialization.safetensors", {"rows": rows}, {"left": left})

    def personalized(self, done: Personalized, seconds: float, left: Entries) -> None:
        """Save a stack of personalized clients in a file of its own."""
        tensors = {"clients": torch.tensor(done.clients), "rows": torch.tensor(done.rows)}
        for fold, curves in done.curves.items():
            tensors |= {f"curves/{fold}/{name}": torch.tensor(values) for name, values in curves.items()}
        for i, c in enumerate(done.clients):
            tensors[f"margins/{c}"] = torch.tensor(done.margins[i])
            for mark, diagnoses in done.diagnoses.items():
                tensors |= {f"diagnostics/{mark}/{name}/{c}": torch.tensor(v) for name, v in diagnoses[i].items()}
        tensors |= {f"probes/{name}": torch.tensor(values) for name, values in done.probes.items()}
        checkpoint.save(
            self.folder / "clients" / f"{int(done.clients[0]):05d}.safetensors",
            tensors,
            {"seconds": seconds, "left": left},
        )

    def report(self, read: dict[str, Any]) -> dict[str, Any]:
        """Save a reading of validation, with the client steps that the run has taken by then; returns the line."""
        line = read | {"client_steps": self.lines()[-1]["used"]["client_steps"]}
        self._append(line, "reports.jsonl")
        return line

    def reports(self) -> list[dict[str, Any]]:
        """The readings of validation so far, a round at most one."""
        return checkpoint.read_lines(self.folder / "reports.jsonl")

    def lines(self) -> list[dict[str, Any]]:
        """The records so far; a last line cut short by a kill is dropped."""
        return checkpoint.read_lines(self.folder / "records.jsonl")

    def left(self) -> list[Left]:
        """What has left clients so far, in its order."""
        lines = self.lines()
        parts = [("round" if line["round"] else "start", line["round"], line.get("left", {})) for line in lines]
        parts += [("reading", line["round"], line.get("left", {})) for line in self.reports()]
        parts.sort(key=lambda part: part[1])
        last = lines[-1]["round"] if lines else 0
        saved = [self.folder / "initialization.safetensors", *self._stacks()]
        phases = ["initialization", *["personalization"] * len(saved)]
        for phase, file in zip(phases, saved, strict=False):
            if file.exists():
                parts.append((phase, last, checkpoint.values(file).get("left", {})))
        return [
            Left(phase, round, kind, clients, size)
            for phase, round, entries in parts
            for kind, (clients, size) in entries.items()
        ]

    def finish(self, data: EncodedFederation, layout: Layout) -> dict[str, Any]:
        """Put the personalized stacks together; write and return the result."""
        stacks = [checkpoint.load(file) for file in self._stacks()]
        parts = [tensors for tensors, _ in stacks]
        clients = torch.cat([p["clients"] for p in parts])
        order = clients.argsort()
        if clients[order].tolist() != list(range(len(data.clients))):
            raise RuntimeError(f"{self.folder}: {len(clients)} personalized clients saved of {len(data.clients)}")
        curves: dict[str, dict[str, Any]] = {"validation": {}, "test": {}}
        diagnostics: dict[int, dict[str, list[Any]]] = {}
        margins: list[Any] = [None] * len(order)
        probes: dict[str, Any] = {}
        for name in parts[0]:
            match name.split("/"):
                case "curves", fold, metric:
                    curves[fold][metric] = torch.cat([p[name] for p in parts])[order].tolist()
                case "probes", what:
                    probes[what] = torch.cat([p[name] for p in parts])[order].tolist()
        for name, values in (item for part in parts for item in part.items()):
            match name.split("/"):
                case "margins", c:
                    margins[int(c)] = _rounded(values.tolist())
                case "diagnostics", mark, what, c:
                    at = diagnostics.setdefault(int(mark), {})
                    at.setdefault(what, [None] * len(order))[int(c)] = _rounded(values.tolist())
        lines = self.lines()
        assignment = lines[-1]["assignment"] if lines else None
        comparable = assignment is not None and len(data.groups) > 0
        away = unseen(self.config, data.groups, data.group_of)
        used = next((line["used"] for line in reversed(lines) if "used" in line), dataclasses.asdict(Usage()))
        took = [line["seconds"] for line in lines if "seconds" in line]
        adapter = layout.width - layout.beside
        head = sum(s.size for s in layout.segments if s.name.startswith(HEAD))
        result = {
            "algorithm": self.config.algorithm,
            "key": self.config.key,
            "seed": self.config.seed,
            "config": to_dict(self.config),
            "clients": list(data.ids),
            "sizes": data.sizes().tolist(),
            "groups": {"names": list(data.groups), "of": data.group_of.tolist()},
            "unseen": away.tolist(),
            "assignment": assignment,
            "ari": adjusted_rand_index(assignment, np.delete(data.group_of, away)) if comparable else None,
            "weights": self.algorithm.weights,
            "base": base_identity(self.config.model.base),
            "parameters": {"adapter": adapter, "latent": layout.beside - head} | ({"head": head} if head else {}),
            **used,
            "seconds": {
                "rounds": sum(line.get("seconds", 0.0) for line in lines),
                "median_round": float(np.median(took)) if took else None,
                "personalization": sum(values["seconds"] for _, values in stacks),
            },
            "restarts": self.restarts,
            "privacy": {
                name.removeprefix("privacy/"): value
                for name, value in (lines[-1].get("metrics", {}) if lines else {}).items()
                if name.startswith("privacy/")
            },
            "ledger": totals(self.left(), self.algorithm.needed() or {}),
            "marks": list(self.config.personalization.marks),
            **curves,
            "margins": {"test": margins},
            "diagnostics": [{"mark": mark, **values} for mark, values in sorted(diagnostics.items())],
            "probes": probes,
            "notes": list(data.notes),
        }
        checkpoint.write_json(self.folder / "result.json", result)
        return result

    def export(self, layout: Layout, ids: Sequence[str]) -> None:
        """`adapters/initialization` (or one a client) and `adapters/personalized/CLIENT` as PEFT folders."""
        from raypref.models.peft_io import export_peft, is_classifier

        if any(s.name.startswith(HEAD) for s in layout.segments) and not is_classifier(layout):
            console.say("note: transformers knows no classifier with an MLP head; adapters/ has it as head.safetensors")
        root = self.folder / "adapters"
        start = checkpoint.load(self.folder / "initialization.safetensors")[0]["rows"]
        if start.dim() == 1:
            export_peft(root / "initialization", start, layout, self.config.model)
        else:
            for name, row in zip(ids, start, strict=True):
                export_peft(root / "initialization" / safe_name(name), row, layout, self.config.model)
        for file in self._stacks():
            part = checkpoint.load(file)[0]
            z = part.get("probes/personalized_mu", [None] * len(part["rows"]))
            for c, row, mu in zip(part["clients"].tolist(), part["rows"], z, strict=True):
                export_peft(root / "personalized" / safe_name(ids[c]), row, layout, self.config.model, mu)

    def _stacks(self) -> list[Path]:
        return sorted((self.folder / "clients").glob("*.safetensors"))

    def _append(self, line: dict[str, Any], name: str = "records.jsonl") -> None:
        with open(self.folder / name, "a") as file:
            file.write(json.dumps(line) + "\n")


def totals(left: Sequence[Left], needs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By kind: who could read it, in how many rounds it left, how many times a client sent it, and bytes.

    needs: what the method's server reads of each client (`Algorithm.needs`)."""
    out: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(entry.kind for entry in left):
        of = [entry for entry in left if entry.kind == kind]
        rounds = len({entry.round for entry in of if entry.phase == "round"})
        sums = {"rounds": rounds, "clients": sum(e.clients for e in of), "bytes": sum(e.bytes for e in of)}
        out[kind] = {"reader": SERVER if kind in needs else named(kind).reader, **sums}
    return out


def saved_state(folder: Path, config: RunConfig) -> State:
    """The method's state after its last round."""
    tensors, values = checkpoint.load(folder / "state.safetensors")
    values.pop("used")
    return checkpoint.put_together(registry.algorithm(config.algorithm).state, tensors, values)


def _rounded(values: Any) -> Any:
    """Nested lists of floats at six significant digits: float32 holds hardly more, and the file stays small."""
    return [_rounded(v) for v in values] if isinstance(values, list) else float(f"{values:.6g}")


def safe_name(client: str) -> str:
    """A client id as a file name, different ids apart: bytes other than ASCII letters, digits, '.', '_' and '-' become
    %XX (as in a URL), a leading dot %2E, and a name too long for a file system ends in a hash instead."""
    name = quote(client, safe="").replace("~", "%7E")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    return name if len(name) <= 120 else f"{name[:100]}~{hashlib.sha256(client.encode()).hexdigest()[:16]}"


def doubts(result: dict[str, Any]) -> list[str]:
    """Warnings about the result, a line each."""
    losses = np.asarray(result["test"]["loss"])
    broken = int((~np.isfinite(losses)).any(axis=1).sum())
    return [f"the loss of {broken} clients is not finite; try a lower learning rate"] if broken else []


def finished_run(folder: Path) -> FinishedRun:
    """A finished run as tables and figures take it, by its folder. Raises `UserError` where there is no result."""
    result = checkpoint.read_json(folder / "result.json", "algorithm", "clients")
    ended = int(1000 * (folder / "result.json").stat().st_mtime)
    groups = checkpoint.read_json(folder / "groups.json") if (folder / "groups.json").exists() else None
    latent = Latent.load(folder / "latent.npz") if (folder / "latent.npz").exists() else None
    return FinishedRun(str(folder), ended, flatten(to_dict(from_dict(result["config"]))), result, groups, latent)


def folder_name(config: RunConfig) -> str:
    """The name of a run's folder."""
    return f"{config.method}-seed{config.seed}-{config.key}"


def check_unchanged(out: Path, config: RunConfig) -> None:
    """`UserError` where a run of the same words was begun and not finished whose local data have changed since."""
    for folder in sorted(out.glob(f"{config.method}-seed{config.seed}-*")):
        if (folder / "config.json").exists() and not (folder / "result.json").exists():
            begun = read_config(folder)
            same = dataclasses.replace(begun, data=dataclasses.replace(begun.data, digest=config.data.digest))
            if same == config:
                raise UserError(f"the data changed since {folder} was begun; leave --resume out to start anew")


def run_folder(out: Path, config: RunConfig, resume: bool) -> Path:
    """`METHOD-seedN-KEY` in `out`; a repeat gets its own (-2, -3, …), a resume the newest that is not finished, or the
    newest there is."""
    stem = folder_name(config)
    taken = [out / stem] if (out / stem).exists() else []
    while (out / f"{stem}-{len(taken) + 1}").exists():
        taken.append(out / f"{stem}-{len(taken) + 1}")
    if resume and taken:
        return ([folder for folder in taken if not (folder / "result.json").exists()] or taken)[-1]
    if resume:
        check_unchanged(out, config)
        console.say(f"note: there is no run of these words in {out} to go on with; it begins")
    if taken and not (taken[-1] / "result.json").exists():
        console.say(f"note: {taken[-1]} was begun and not finished; the same words with --resume would go on with it")
    return out / f"{stem}-{len(taken) + 1}" if taken else out / stem
