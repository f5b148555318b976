"""What training said of itself, round by round."""

from __future__ import annotations

from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Entry, Figure, Material, Section
from raypref.evaluation.pages.sections.common import texts

LOSS = "train/loss"


def section(material: Material) -> Section | None:
    """The training loss over rounds; None where no entry has rounds."""
    losses = {entry.label: of for entry in material.shown if (of := _losses(entry))}
    if not losses:
        return None
    lines = [charts.Line(name, [r for r, _ in of], [v for _, v in of]) for name, of in losses.items()]
    ends = "; ".join(f"{name} from {of[0][1]:.3f} to {of[-1][1]:.3f}" for name, of in losses.items())
    rows = [(name, (str(r), f"{v:.4f}")) for name, of in losses.items() for r, v in of]
    figure = Figure(
        "Training loss over rounds",
        f"Of the cohort of each round: {ends}. Methods with other objectives have other losses.",
        charts.lines(lines, "round", "training loss", says=f"Training loss over rounds: {ends}."),
        texts("of", ("round", "loss"), rows),
    )
    lead = "Whether training came to rest. Of several seeds the first is drawn."
    return Section("training", "Training", lead, [figure])


def _losses(entry: Entry) -> list[tuple[int, float]]:
    lines = (line for line in entry.rounds if LOSS in line.get("metrics", {}))
    return [(int(line["round"]), float(line["metrics"][LOSS])) for line in lines]
