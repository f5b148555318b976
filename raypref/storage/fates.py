"""Reads runs and policies from MLflow, or kept results, and keeps the fate of each: used, or left out and why.

The MLflow run of a sweep as such is neither.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from raypref.config import UserError, flatten, from_dict, nearest, registry, to_dict
from raypref.config.conditions import matches
from raypref.evaluation.latent import Latent
from raypref.evaluation.runs import FinishedRun, Policy
from raypref.storage import kept, tracking
from raypref.storage.tracking import TrackedRun


class Fates:
    """The fates of stage-1 runs."""

    WHAT, TAG, FILES = "runs", "raypref.key", ("result.json", "groups.json", "latent.npz")
    """What they are called, a tag that they alone have, and the artifacts that are read, the result first."""
    WAITING: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Fate of a run that one command would complete -> (what it is, that command)."""
    USED = "used"
    UNFINISHED = "unfinished"
    STOPPED = "stopped early"

    def __init__(self, runs: Sequence[TrackedRun]) -> None:
        self.runs = {run.id: run for run in runs if self.TAG in run.tags}
        self.of = dict.fromkeys(self.runs, "")

    def read(self, uri: str) -> Iterator[Any]:
        """Finished runs whose result can be read."""
        for run in self.runs.values():
            if run.status != "FINISHED":
                stopped = self.STOPPED if tracking.STOPPED in run.tags else self.UNFINISHED
                self.of[run.id] = "failed" if run.status == "FAILED" else stopped
                continue
            files = tracking.read_artifacts(uri, run.id, self.FILES)
            if self.FILES[0] not in files:
                self.of[run.id] = f"without {self.FILES[0]}"
                continue
            result = json.loads(files[self.FILES[0]])
            try:
                config = flatten(to_dict(from_dict(result["config"])))  # newer fields by their defaults
            except UserError as error:
                unknown = registry.ELSEWHERE in str(error)
                self.of[run.id] = "of a method that is not known here" if unknown else "of another version"
                continue
            if (finished := self.finished(run, config, result, files)) is not None:
                yield finished

    def finished(
        self, run: TrackedRun, config: dict[str, Any], result: Any, files: Mapping[str, bytes]
    ) -> FinishedRun | None:
        """The run with its files; None where it is of no use, after its fate was set."""
        groups = json.loads(files["groups.json"]) if "groups.json" in files else None
        latent = Latent.load(io.BytesIO(files["latent.npz"])) if "latent.npz" in files else None
        return FinishedRun(run.id, run.started, config, result, groups, latent)

    @staticmethod
    def fullness(run: Any) -> int:
        """1 with diagnostics, else 0; of equal runs the fullest is kept, of equally full ones the newest."""
        return bool(run.result.get("diagnostics"))

    def newest(self, runs: Iterable[Any], where: Mapping[str, str]) -> list[Any]:
        """One run of each configuration and seed that fits `where`: the newest of the fullest."""
        best: dict[str, Any] = {}
        for run in sorted(runs, key=lambda run: (self.fullness(run), run.started)):
            if not all(matches(run.config[key], word) for key, word in where.items()):
                self.of[run.id] = "other configuration"
                continue
            name = f"{run.identity()} {run.seed}"
            if name in best:
                self.of[best[name].id] = "older duplicate"
            best[name] = run
        return list(best.values())

    def use(self, ids: Iterable[str]) -> None:
        """Mark these runs as used; the others had another configuration than any table took."""
        used = set(ids)
        for run_id, fate in self.of.items():
            if not fate:
                self.of[run_id] = self.USED if run_id in used else "other configuration"

    def waiting(self) -> list[str]:
        """Ids of the runs that one command would complete."""
        return [run_id for run_id, fate in self.of.items() if fate in self.WAITING]

    def summary(self) -> str:
        """`runs: 24 used; left out: 2 unfinished, 1 older duplicate`; '' without any run."""
        counts = Counter(fate or "read" for fate in self.of.values())
        used = counts.pop(self.USED, 0)
        left = ", ".join(f"{count} {fate}" for fate, count in counts.most_common())
        return f"{self.WHAT}: {used} used; left out: {left or 'none'}" if self.of else ""

    def lines(self, shown: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
        """A line for each run: what it is, its fate, and the items that it is `shown` in, by its id."""
        for run_id, run in self.runs.items():
            yield {
                "run": run_id,
                "experiment": run.experiment,
                "algorithm": run.params.get("algorithm", ""),
                "seed": run.params.get("seed", ""),
                "key": run.tags[self.TAG],
                "fate": self.of[run_id],
                "in": " ".join(dict.fromkeys(shown.get(run_id, ()))),
            }


class KeptFates(Fates):
    """The fates of kept results, in the place of runs in MLflow."""

    EARLIER = "of an earlier version of the results (python -m raypref.results --make)"

    def read(self, uri: str) -> Iterator[FinishedRun]:
        """uri: of no use; each run's id is its file."""
        for run in self.runs.values():
            if kept.version(Path(run.id)) == kept.VERSION:
                yield kept.read(Path(run.id))
            else:
                self.of[run.id] = self.EARLIER


class PolicyFates(Fates):
    """The fates of policies (`raypref.rlhf`)."""

    WHAT, TAG, FILES = "policies", "raypref.policy", ("policy.json", "judgements.json")
    WAITING: ClassVar = {
        f"{what} ({how})": (what, how)
        for what, how in (
            ("unfinished", "the same words of python -m raypref.rlhf go on"),
            ("not judged", "python -m raypref.judge"),
        )
    }
    UNFINISHED, UNJUDGED = WAITING

    def __init__(self, runs: Sequence[TrackedRun], judge: str) -> None:
        """judge: whose judgements alone are of use; empty: anyone's."""
        super().__init__(runs)
        self.judge, self.judges = judge, set[str]()

    def read(self, uri: str) -> Iterator[Any]:
        """Policies with a judgement; raises `UserError` where the named judge has judged none."""
        yield from super().read(uri)
        if self.judge and self.judge not in self.judges:
            hint = nearest(self.judge, self.judges) if self.judges else "; python -m raypref.judge makes judgements"
            raise UserError(f"no policy of these experiments was judged by {self.judge!r}{hint}")

    def finished(
        self, run: TrackedRun, config: dict[str, Any], result: Any, files: Mapping[str, bytes]
    ) -> Policy | None:
        judgements = json.loads(files.get("judgements.json", b"{}"))
        self.judges |= set(judgements)
        kept = {judge: judgement for judge, judgement in judgements.items() if self.judge in ("", judge)}
        if not kept:
            self.of[run.id] = f"not judged by {self.judge}" if self.judge else self.UNJUDGED
            return None
        return Policy(run.id, run.started, config, result, judgements=kept)

    @staticmethod
    def fullness(run: Any) -> int:
        """Its number of judgements."""
        return len(run.judgements)
