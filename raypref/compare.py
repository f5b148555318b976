"""`python -m raypref.compare NAME [NAME …]`: the paper's tables and figures from what MLflow holds."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro

from raypref.config import UserError, flatten, from_dict, nearest, to_dict
from raypref.config.conditions import conditions, matches
from raypref.config.spaces import every_name as space_names
from raypref.config.spaces import listing
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.folders import check_makeable, output_folder, working_folder

if TYPE_CHECKING:
    from raypref.evaluation.papers import Found, Item
    from raypref.evaluation.report import Fold
    from raypref.evaluation.tables import Table
    from raypref.storage.tracking import Held

    Drawing = Callable[[Sequence[Found], Fold], Item]


@dataclass(frozen=True)
class Options:
    """Draw the papers' tables and figures from finished runs of these experiments in MLflow (MLFLOW_TRACKING_URI, or
    mlflow.db where the command is typed). Each takes, of all runs that fit, those that differ in nothing but what it
    varies; where several such families exist, the one that fills most of it."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Experiments: the NAMEs that were given to raypref.run and raypref.sweep."""
    table: tuple[str, ...] = ()
    """Only these of Tables 1 to 7, mix (algorithms with either objective, by local steps), context (by the pairs that z
    was inferred from), latent (the latent space in numbers), overhead and unseen (clients that took no part, S1
    Table 2), and of policies that raypref.rlhf made win-rates, win-rates-unseen and win-rates-ratio (S1 Tables 1 to
    3); without --table and --figure everything is drawn."""
    figure: tuple[str, ...] = ()
    """Only these of Figures 2 to 6, 0 for GQ(l) by layer, latent (the latent space by t-SNE, S1 Fig. 3),
    latent-numbers and win-rates (S1 Fig. 4); without --table and --figure everything is drawn."""
    where: tuple[str, ...] = ()
    """Only runs with these fields, such as federation.rounds=60 data.group_sizes="15 15 5 5"."""
    reference: str = ""
    """The row that differences are taken to (default: FedGD); where a table lacks it, one of its own."""
    fold: Literal["test", "validation"] = "test"
    """Which held-out pairs accuracies are read on."""
    judge: str = ""
    """Policies by what this judge says, such as style or reward-helpful (default: of each table the one that judged
    most of its policies; judges are never mixed)."""
    out: Path | None = None
    """Where files go; runs/compare where the command is typed unless another folder is named."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    if not argv:
        return listing("compare", argv)
    options = read_options(argv)
    if not options.names:
        raise UserError(f"{NAMES_FIRST}; there are the spaces {', '.join(space_names())}")

    from raypref.evaluation import latent_figures, mix, overhead, papers, unseen, win_rates
    from raypref.storage import tracking

    of_policies = {"table": _named(win_rates.TABLES), "figure": _named(win_rates.FIGURES)}
    there = {
        "table": _named(papers.TABLES, mix.TABLES, latent_figures.TABLES, overhead.TABLES, unseen.TABLES),
        "figure": _named(papers.FIGURES, latent_figures.FIGURES),
    }
    there = {kind: there[kind] | of_policies[kind] for kind in there}
    wanted = [("table", n) for n in options.table] + [("figure", n) for n in options.figure]
    for kind, number in wanted:
        if number not in there[kind]:
            raise UserError(f"there is no --{kind} {number}; there are: {', '.join(map(str, sorted(there[kind])))}")
    whole = not wanted
    wanted = wanted or [(kind, number) for kind, of in there.items() for number in of]
    reference, where = papers.reference(options.reference or "FedGD"), conditions(options.where)
    out = (options.out or working_folder() / "runs" / "compare").expanduser().absolute()
    check_makeable(out)
    uri = tracking.tracking_uri(working_folder())
    held, known = tracking.held(uri, options.names)
    check_names(options.names, known, uri)

    stage1, stage2 = Fates(held), Judged(held, options.judge)
    kinds = {number in of_policies[kind] for kind, number in wanted}
    fates = [fate for fate, policies in ((stage1, False), (stage2, True)) if policies in kinds]  # others are of no use
    read = {fate.WHAT: list(fate.read(uri)) for fate in fates}
    fitting = {fate.WHAT: list(fate.newest(read[fate.WHAT], where)) for fate in fates}
    runs, policies = fitting.get(stage1.WHAT, []), fitting.get(stage2.WHAT, [])
    if not runs and not policies and (whole or True not in kinds or any(read.values())):
        if all_read := [run for found in read.values() for run in found]:
            raise UserError(
                f"no run fits --where {' '.join(options.where)}; the runs have {there_are(all_read, where)}"
            )
        how = "" if whole and stage2.waiting() else "; python -m raypref.sweep makes some"
        raise UserError(f"no run to show: {told(fates, '; ') or 'none is there'}{how}")
    items = []
    for kind, number in wanted:
        if number in of_policies[kind]:
            items.append(stage2.hinted(there[kind][number](policies, options.fold)))
        else:
            items.append(there[kind][number](runs, options.fold))
    stale = [item.name for item in items] if whole else []  # what an earlier command drew of other runs
    if whole and not stage2.held:  # no policy was asked for, nor is any there
        items = [item for (kind, number), item in zip(wanted, items, strict=True) if number not in of_policies[kind]]
    drawn = [item for item in items if item.content is not None]
    for fate in fates:
        fate.used(run.id for item in items for run in item.runs)
    if drawn:
        output_folder(out)
        for item in stale or [item.name for item in drawn]:
            for name in (item, f"{item}-differences"):
                for kind in ("md", "csv", "tex", "png", "pdf"):
                    (out / f"{name}.{kind}").unlink(missing_ok=True)
        lines = [write(item, out, reference) for item in drawn]
        if whole:
            checkpoint.write_bytes(out / "runs.csv", to_csv(fates, items).encode())
            checkpoint.write_bytes(out / "compare.md", "\n".join([*lines, told(fates), ""]).encode())
    for line in remarks(items if not whole else drawn, reference if options.reference else ""):
        console.say(line)
    for shown in drawn:
        for line in win_rates.remarks(shown, policies):  # type: ignore[arg-type]
            console.say(line)
    if whole and (gone := undrawn(items)):
        console.say(gone)
    if words := told(fates):
        console.say(f"\n{words}")
    if not drawn:
        console.warn("nothing that was asked for could be drawn; nothing was written")
        return 1
    console.say(f"{len(drawn)} of {len(items)} tables and figures: {out / 'compare.md' if whole else out}")
    return 0


def _named(*registries: Mapping[Any, Drawing]) -> dict[str, Drawing]:
    """All of them, by what a person types."""
    return {str(name): make for registry in registries for name, make in registry.items()}


NAMES_FIRST = "NAMEs come first: python -m raypref.compare NAME [NAME …] [--table 3 …]"


def read_options(argv: list[str]) -> Options:
    """The command line; a NAME behind an option that takes several values is read as one of them, and told so."""
    try:
        return parse(Options, argv, "python -m raypref.compare")
    except UserError as error:
        if argv[0].startswith("-") and "valid parse" in str(error):
            raise UserError(NAMES_FIRST) from error
        raise


def check_names(names: Sequence[str], known: Sequence[str], uri: str) -> None:
    """Raises `UserError` on a name that is neither an experiment nor a space; says which spaces have no runs yet."""
    for name in names:
        if name in known:
            continue
        if name not in space_names():
            options = {*known, *space_names()} - {"Default"}  # MLflow's own, which we never write to
            raise UserError(f"MLflow at {uri} has no experiment {name!r}{nearest(name, options)}")
        console.say(f"{name}: no runs in MLflow yet; python -m raypref.sweep {name}")


def there_are(runs: Sequence[Found], fields: Iterable[str]) -> str:
    """`federation.rounds 4, 60; seed 0, 1`: what the fields of a --where that no run fits could be."""
    from raypref.evaluation.ranking import show

    values = {field: sorted({run.config[field] for run in runs}, key=str) for field in fields}
    return "; ".join(f"{field} {', '.join(map(show, of))}" for field, of in values.items())


def remarks(items: Sequence[Item], reference: str) -> Iterator[str]:
    """A line for each item that lacks runs, with the commands that make them, and one for each other reference than the
    one that was asked for (empty: none was)."""
    from raypref.evaluation.tables import Table

    for item in items:
        if item.missing:
            how = "lacks" if item.content is not None else "not drawn, for want of"
            what, commands = (dict.fromkeys(words) for words in zip(*item.missing, strict=True))
            yield f"{item.name} {how} {'; '.join(what)} ({'; '.join(commands)})"
    for item in items:
        if not reference:
            continue
        if isinstance(item.content, Table) and len(item.content.rows) > 1 and not row_of(item.content, reference):
            used = f"to {item.reference}" if item.reference in item.content.rows else "left out"
            yield f"{item.name} has no row {reference}; differences {used}"


def undrawn(items: Sequence[Item]) -> str:
    """`not drawn, for want of runs: table3 (python -m raypref.sweep main_results); …`, by what would make the runs."""
    by_command: dict[str, list[str]] = {}
    for item in items:
        if item.content is None:
            commands = " and ".join(dict.fromkeys(missing.command for missing in item.missing))
            by_command.setdefault(commands, []).append(item.name)
    told = [
        f"{', '.join(names)} ({commands})" if commands else ", ".join(names) for commands, names in by_command.items()
    ]
    return f"not drawn, for want of runs: {'; '.join(told)}" if told else ""


def row_of(table: Table, reference: str) -> str:
    """The row of that label, or the only one of that method in some form, as `FedVPL (printed)`; '' where none is."""
    of_method = [row for row in dict.fromkeys(table.rows) if row == reference or row.startswith(f"{reference} (")]
    return reference if reference in of_method else of_method[0] if len(of_method) == 1 else ""


def write(item: Item, out: Path, reference: str) -> str:
    """A drawn item's files; returns its Markdown."""
    from raypref.evaluation import paired, tables

    assert item.content is not None
    if not isinstance(item.content, tables.Table):
        for kind in ("png", "pdf"):
            file = io.BytesIO()
            item.content.savefig(file, format=kind, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
            checkpoint.write_bytes(out / f"{item.name}.{kind}", file.getvalue())
        return f"![{item.name}]({item.name}.png)\n\n{item.caption}\n"
    table = item.content
    small = paired.against(table, row_of(table, reference) or item.reference)
    console.say(tables.terminal(table))
    console.say("")
    shown = [table] if small is None else [table, small]
    for one in shown:
        for kind, render in (("md", tables.markdown), ("csv", tables.to_csv), ("tex", tables.latex)):
            checkpoint.write_bytes(out / f"{one.name}.{kind}", render(one).encode())
    return "\n".join(tables.markdown(one) for one in shown)


class Fates:
    """What became of every run that MLflow holds: used, or left out and why. A sweep's own run is none."""

    USED = "used"
    WHAT, TAG, FILES = "runs", "raypref.key", ("result.json", "groups.json", "latent.npz")
    """What they are called, which tag only they have, and the artifacts that are read, the result first."""
    UNFINISHED = "unfinished"

    def __init__(self, held: Sequence[Held]) -> None:
        self.held = {run.id: run for run in held if self.TAG in run.tags}
        self.of = dict.fromkeys(self.held, "")

    def read(self, uri: str) -> Iterator[Found]:
        """Finished runs whose result can be read."""
        from raypref.storage import tracking

        for run in self.held.values():
            if run.status != "FINISHED":
                self.of[run.id] = "failed" if run.status == "FAILED" else self.UNFINISHED
                continue
            files = tracking.read_artifacts(uri, run.id, self.FILES)
            if self.FILES[0] not in files:
                self.of[run.id] = f"without {self.FILES[0]}"
                continue
            result = json.loads(files[self.FILES[0]])
            try:
                config = flatten(to_dict(from_dict(result["config"])))  # what is newer than the run by its default
            except UserError:
                self.of[run.id] = "of another version"
                continue
            yield from self.found(run, config, result, files)

    def found(self, run: Held, config: dict[str, Any], result: Any, files: Mapping[str, bytes]) -> Iterator[Found]:
        """The run as it was read, if it is of use."""
        from raypref.evaluation.latent import Latent
        from raypref.evaluation.papers import Found

        groups = json.loads(files["groups.json"]) if "groups.json" in files else None
        latent = Latent.load(io.BytesIO(files["latent.npz"])) if "latent.npz" in files else None
        yield Found(run.id, run.started, config, result, groups, latent)

    @staticmethod
    def fuller(run: Found) -> int:
        """Of equal runs the fullest is kept, before the newest: one with diagnostics."""
        return bool(run.result.get("diagnostics"))

    def newest(self, runs: Iterable[Found], where: Mapping[str, str]) -> Iterator[Found]:
        """Of each configuration and seed the newest run of the `fuller` ones."""
        best: dict[str, Found] = {}
        for run in sorted(runs, key=lambda r: (self.fuller(r), r.started)):
            if not all(matches(run.config[key], word) for key, word in where.items()):
                self.of[run.id] = "other configuration"
                continue
            name = f"{run.identity()} {run.seed}"
            if name in best:
                self.of[best[name].id] = "older duplicate"
            best[name] = run
        yield from best.values()

    def used(self, ids: Iterable[str]) -> None:
        """The others that were read had another configuration than any table took."""
        taken = set(ids)
        for run_id, fate in self.of.items():
            if not fate:
                self.of[run_id] = self.USED if run_id in taken else "other configuration"

    def told(self) -> str:
        """`runs: 24 used; left out: 2 unfinished, 1 older duplicate`."""
        counts = Counter(fate or "read" for fate in self.of.values())
        kept = counts.pop(self.USED, 0)
        left = ", ".join(f"{count} {fate}" for fate, count in counts.most_common())
        return f"{self.WHAT}: {kept} used; left out: {left or 'none'}" if self.of else ""


class Judged(Fates):
    """The same of policies (`raypref.rlhf`)."""

    WHAT, TAG, FILES = "policies", "raypref.policy", ("policy.json", "judgements.json")
    WAITING: ClassVar = {
        f"{what} ({how})": (what, how)
        for what, how in (
            ("unfinished", "the same words of python -m raypref.rlhf go on"),
            ("not judged", "python -m raypref.judge"),
        )
    }
    """Fates of those that lack no more than the end of their training, or a judgement; and what to do about them."""
    UNFINISHED, UNJUDGED = WAITING

    def __init__(self, held: Sequence[Held], judge: str) -> None:
        """judge: whose judgements alone are of use; empty: anyone's."""
        super().__init__(held)
        self.judge, self.judges = judge, set[str]()

    def read(self, uri: str) -> Iterator[Found]:
        """Raises `UserError` where nobody was judged by the judge."""
        yield from super().read(uri)
        if self.judge and self.judge not in self.judges:
            hint = nearest(self.judge, self.judges) if self.judges else "; python -m raypref.judge makes judgements"
            raise UserError(f"no policy of these experiments was judged by {self.judge!r}{hint}")

    def found(self, run: Held, config: dict[str, Any], result: Any, files: Mapping[str, bytes]) -> Iterator[Found]:
        from raypref.evaluation.win_rates import Policy

        judgements = json.loads(files.get("judgements.json", b"{}"))
        self.judges |= set(judgements)
        kept = {name: told for name, told in judgements.items() if self.judge in ("", name)}
        if kept:
            yield Policy(run.id, run.started, config, result, judgements=kept)
        else:
            self.of[run.id] = f"not judged by {self.judge}" if self.judge else self.UNJUDGED

    def waiting(self) -> list[str]:
        """Those of such a fate."""
        return [run_id for run_id, fate in self.of.items() if fate in self.WAITING]

    def hinted(self, item: Item) -> Item:
        """The item, which lacks policies, with what becomes of those that wait, where some of them would be in it."""
        from raypref.evaluation.papers import Missing
        from raypref.evaluation.win_rates import method, shows

        ids = [id for id in self.waiting() if shows(item.name, self.held[id].params)]
        if item.content is not None:  # those of the methods that it lacks
            gone = {name for lacks in item.missing for name in lacks.what.removeprefix("policies by ").split(", ")}
            ids = [id for id in ids if method(self.held[id].params) in gone]
        if not item.missing or not ids:
            return item
        waiting = []
        for fate, count in Counter(self.of[id] for id in ids).items():
            what, command = self.WAITING[fate]
            waiting.append(Missing(f"{count} polic{'y that is' if count == 1 else 'ies that are'} {what}", command))
        return replace(item, missing=(*(item.missing if item.content is not None else ()), *waiting))

    @staticmethod
    def fuller(run: Any) -> int:
        """One with more judgements."""
        return len(run.judgements)


def told(fates: Iterable[Fates], between: str = "\n") -> str:
    """What became of all runs, and of all policies where there are any."""
    return between.join(filter(None, (fate.told() for fate in fates)))


def to_csv(fates: Iterable[Fates], items: Sequence[Item]) -> str:
    """A line a run: what it is, what became of it, and which tables and figures show it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "experiment", "algorithm", "seed", "key", "fate", "in"])
    shown: dict[str, list[str]] = {}
    for item in items:
        for run in item.runs:
            if item.name not in shown.setdefault(run.id, []):
                shown[run.id].append(item.name)
    for fate in fates:
        for run_id, held in fate.held.items():
            what = [held.params.get("algorithm", ""), held.params.get("seed", ""), held.tags[fate.TAG]]
            writer.writerow([run_id, held.experiment, *what, fate.of[run_id], " ".join(shown.get(run_id, []))])
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
