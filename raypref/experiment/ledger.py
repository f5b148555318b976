"""The ledger of a run as people read it: what has left its clients (`raypref.clients.ledger` counts it)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from raypref.clients.ledger import READERS, named
from raypref.evaluation.comparisons.privacy import secure_aggregation
from raypref.evaluation.runs import run_name
from raypref.storage.results import Left

ABOUT = (
    "Counted at the one door through which anything comes back from clients, as float32, float64 or int64 numbers "
    "before any compression. *times*: how often a client sent something of the kind. What the process that simulates "
    "the clients reads itself, such as the files of their pairs, is not counted: docs/privacy.md says what that means."
)


def to_csv(left: Sequence[Left]) -> str:
    """A line a phase, round and kind."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Left._fields)
    writer.writerows(left)
    return out.getvalue()


def markdown(result: Mapping[str, Any]) -> str:
    """The totals of a run, who could read them, and whether secure aggregation would do."""
    entries = result.get("ledger", {})  # not in those of earlier versions
    readers = [reader for reader in READERS if any(entry["reader"] == reader for entry in entries.values())]
    lines = [
        f"# What left the clients of {run_name(result)}, seed {result['seed']}",
        "",
        "| kind | what it is | who could read it | rounds | times | kB |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name, entry in sorted(entries.items(), key=lambda item: readers.index(item[1]["reader"])):
        numbers = f"{entry['rounds']:,} | {entry['clients']:,} | {entry['bytes'] / 1000:,.1f}"
        lines.append(f"| {name} | {named(name).what} | {entry['reader']} | {numbers} |")
    lines += ["", *(f"- *{reader}*: {READERS[reader]}." for reader in readers)]
    word, why = secure_aggregation(result["algorithm"], entries)
    return "\n".join([*lines, "", f"Under secure aggregation: **{word}** ({why}).", "", ABOUT, ""])
