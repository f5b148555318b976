"""The drawings of a page as Vega-Lite specifications: plain values, made of numbers that others have computed.

Colours are CSS variables of the page, so that they follow its light and dark; every drawing is as wide as its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Spec = dict[str, Any]

COLOURS = [f"var(--c{i})" for i in range(7)]
"""As many as `raypref.evaluation.figures.COLOURS`, in its order; `page.css` says what they are in light and in dark."""
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-left", "triangle-right"]
INK, FAINT, PAPER = "var(--ink)", "var(--faint)", "var(--paper)"
FRAME, LINE = 60, 17
"""Pixels of a drawing's height that its axis takes, and a line of its legend."""
WAYS = ["gains", "loses", "stays"]
HEAD = "\u241e"
"""What a line begins with that holds the name of those beneath it, in the place of a client."""
CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "domainColor": FAINT, "tickColor": FAINT, "gridColor": FAINT,
        "gridOpacity": 0.35, "titleFontWeight": "normal", "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 150,
        "labelOverlap": "greedy", "labelSeparation": 4,
    },
    "legend": {
        "labelColor": INK, "titleColor": INK, "orient": "bottom", "title": None, "labelFontSize": 12,
        "labelLimit": 250, "symbolStrokeWidth": 2, "symbolOpacity": 1,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A line of a chart: y over x, with an interval where it has one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    strong: bool = False
    """Thick and in the colour of text: what the others are parts of."""


def lines(of: Sequence[Line], x: str, y: str, *, says: str, reference: float | None = None) -> Spec:
    """Lines with their intervals as bands; one can be picked out where there are several.

    x, y: titles of the axes. says: the drawing in a sentence. reference: a level to compare with, dotted.
    """
    labels = list(dict.fromkeys(line.label for line in of))
    rows = [
        {"line": line.label, "x": a, "y": b} | ({"low": line.low[i], "high": line.high[i]} if line.low else {})
        for line in of
        for i, (a, b) in enumerate(zip(line.x, line.y, strict=True))
        if math.isfinite(b)
    ]
    strong = [line.label for line in of if line.strong]
    plain = [label for label in labels if label not in strong]
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(plain)} | dict.fromkeys(strong, INK)
    shapes = {label: SHAPES[i % len(SHAPES)] for i, label in enumerate(plain)} | dict.fromkeys(strong, "circle")
    colour = {
        "field": "line", "type": "nominal", "scale": {"domain": labels, "range": [colours[k] for k in labels]},
        "legend": _legend(labels),
    }  # fmt: skip
    shape = colour | {"scale": {"domain": labels, "range": [shapes[k] for k in labels]}}
    xs = sorted({float(a) for line in of for a in line.x})
    across = {
        "field": "x", "type": "quantitative", "title": x,
        "axis": {"values": xs, "format": ".6~g"} if len(xs) <= 9 else {"tickMinStep": 1},
    }  # fmt: skip
    tip = [{"field": "line", "title": "of"}, {"field": "x", "title": x}, {"field": "y", "title": y, "format": ".4~g"}]
    bands = any(line.low for line in of)
    if bands:
        tip += [{"field": end, "title": end, "format": ".4~g"} for end in ("low", "high")]
    encoding = {"x": across, "color": colour}
    up = {"field": "y", "type": "quantitative", "title": y, "scale": {"zero": False}}
    picked, pick = _pick(labels, "line")
    width = {"condition": {"test": {"field": "line", "oneOf": strong}, "value": 3}, "value": 2}
    layers: list[Spec] = []
    if reference is not None:
        layers.append({
            "data": {"values": [{"y": reference}]},
            "mark": {"type": "rule", "strokeDash": [2, 3], "color": INK, "opacity": 0.6, "aria": False},
            "encoding": {"y": {"field": "y", "type": "quantitative"}},
        })  # fmt: skip
    if bands:
        ends = {
            "y": {"field": "low", "type": "quantitative", "title": y, "scale": {"zero": False}},
            "y2": {"field": "high"},
        }
        layers.append({
            "mark": {"type": "area", "aria": False},
            "encoding": {**encoding, **ends, "opacity": _when(picked, 0.16, 0.02)},
        })  # fmt: skip
    layers.append(
        {
            "mark": {"type": "line", "aria": False},
            "encoding": {**encoding, "y": up, "strokeWidth": width, "opacity": _when(picked, 1, 0.15)},
        }
    )
    layers.append({
        "params": pick, "mark": {"type": "point", "filled": True, "size": 45},
        "encoding": {**encoding, "y": up, "shape": shape, "tooltip": tip, "opacity": _when(picked, 1, 0.15)},
    })  # fmt: skip
    return _whole(says, 220, labels) | {"data": {"values": rows}, "layer": layers}


def cells(
    rounds: Sequence[int], rows: Sequence[tuple[str, str, Sequence[int]]], *, says: str, names: Mapping[int, str]
) -> Spec:
    """A line a client, a cell a round, coloured by what it was put to; clients in the order of `rows`, by true group:
    where there are several groups, beneath the name of theirs.

    rows: (client, its true group, what it was put to in each round). names: of what they are put to.
    """
    ends = [*rounds[1:], rounds[-1] + 1]
    values = [
        {"client": client, "group": group, "from": a - 0.5, "to": b - 0.5, "round": a, "put": names[of]}
        for client, group, puts in rows
        for a, b, of in _stretches(rounds, ends, puts)
    ]
    domain = [names[k] for k in sorted(names)]
    colours = [COLOURS[k % len(COLOURS)] if k >= 0 else FAINT for k in sorted(names)]
    groups = list(dict.fromkeys(group for _, group, _ in rows))
    height = min(16 * len(rows), 640)
    heads = -(-16 * len(rows) // height) if len(groups) > 1 else 0  # lines of clients that a name takes
    lines = [[f"{HEAD}{i}{g}" for i in range(heads)] + [c for c, of, _ in rows if of == g] for g in groups]
    titles = [
        {"client": of[heads // 2], "group": group, "from": rounds[0] - 0.5}
        for of, group in zip(lines, groups, strict=True)
    ]
    up = {
        "field": "client", "type": "nominal", "title": "clients by true group" if len(groups) > 1 else "clients",
        "scale": {"domain": [c for one in lines for c in one], "paddingInner": 0.08},
        "axis": {"labels": len(rows) <= 40, "ticks": False, "grid": False, "labelOverlap": False,
                 "labelExpr": f"slice(datum.value, 0, 1) == '{HEAD}' ? '' : datum.value"},
    }  # fmt: skip
    tip = [{"field": f, "title": t} for f, t in (("client", "client"), ("group", "true group"), ("put", "put to"))]
    across = {
        "field": "from", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1, "grid": False},
        "scale": {"zero": False, "nice": False},
    }  # fmt: skip
    drawn = {
        "data": {"values": values},
        "mark": {"type": "rect", "aria": False},
        "encoding": {
            "x": across, "x2": {"field": "to"}, "y": up,
            "color": {"field": "put", "type": "nominal", "legend": _legend(domain),
                      "scale": {"domain": domain, "range": colours}},
            "tooltip": [*tip, {"field": "round", "title": "from round"}],
        },
    }  # fmt: skip
    named = {
        "data": {"values": titles if heads else []},
        "mark": {"type": "text", "align": "left", "dx": 2, "fontSize": 12, "fill": INK, "fontWeight": "bold"},
        "encoding": {"x": across, "y": up, "text": {"field": "group"}},
    }
    return _whole(says, FRAME + height + 16 * len(groups) * (heads > 0), domain) | {"layer": [drawn, named]}


def _stretches(begins: Sequence[int], ends: Sequence[int], values: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """(first round, the one after the last, value) of each run of equal values."""
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            yield begins[start], ends[i - 1], values[start]
            start = i


def plane(
    panels: Mapping[int, Sequence[tuple[float, float, str, str]]], groups: Sequence[str], star: str, *, says: str
) -> Spec:
    """Points in a plane without axes, a round at a time where there are several.

    panels: round -> (x, y, group, whose). groups: in the order of their colours. star: the group that is drawn as one.
    """
    rounds = sorted(panels)
    values = [
        {"round": r, "x": x, "y": y, "group": group, "whose": whose}
        for r, points in panels.items()
        for x, y, group, whose in points
    ]
    domain = [*groups, star] if any(v["group"] == star for v in values) else list(groups)
    colours = [INK if name == star else COLOURS[i % len(COLOURS)] for i, name in enumerate(domain)]
    shapes = ["cross" if name == star else SHAPES[i % len(SHAPES)] for i, name in enumerate(domain)]
    param: Spec = {"name": "round", "value": rounds[-1]}
    if len(rounds) > 1:
        param["bind"] = {"input": "select", "options": rounds, "name": "after round "}
    bare = {"type": "quantitative", "axis": None, "scale": {"zero": False, "padding": 12}}
    legend = {"field": "group", "type": "nominal", "legend": _legend(domain)}
    return _whole(says, 300, domain) | {
        "params": [param],
        "data": {"values": values},
        "transform": [{"filter": "datum.round == round"}],
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.85},
        "encoding": {
            "x": {"field": "x", **bare}, "y": {"field": "y", **bare},
            "color": {**legend, "scale": {"domain": domain, "range": colours}},
            "shape": {**legend, "scale": {"domain": domain, "range": shapes}},
            "size": {"condition": {"test": {"field": "group", "equal": star}, "value": 170}, "value": 50},
            "tooltip": [{"field": "whose", "title": "of"}, {"field": "group", "title": "group"}],
        },
    }  # fmt: skip


def moves(rows: Sequence[tuple[str, str, float, float]], start: str, end: str, x: str, *, says: str) -> Spec:
    """A line a client from where it starts to where it ends, the greatest loss first.

    rows: (client, group, at the start, at the end). start, end: what these are. x: title of the axis.
    """
    order = [client for client, _, _, _ in sorted(rows, key=lambda row: row[3] - row[2])]
    values = [
        {
            "client": c,
            "group": g,
            "start": a,
            "end": b,
            "change": b - a,
            "way": "gains" if b > a else "loses" if b < a else "stays",
        }
        for c, g, a, b in rows
    ]
    across = {"type": "quantitative", "title": x, "scale": {"zero": False, "nice": False, "padding": 10}}
    up = {
        "field": "client", "type": "nominal", "sort": order, "title": None,
        "axis": {"labels": len(rows) <= 40, "ticks": False, "grid": False, "labelOverlap": False},
    }  # fmt: skip
    colour = {
        "field": "way", "type": "nominal", "legend": _legend(WAYS),
        "scale": {"domain": WAYS, "range": [COLOURS[0], COLOURS[1], COLOURS[6]]},
    }  # fmt: skip
    tip = [
        {"field": "client"}, {"field": "group"}, {"field": "start", "title": start, "format": ".1f"},
        {"field": "end", "title": end, "format": ".1f"}, {"field": "change", "format": "+.1f"},
    ]  # fmt: skip
    one = {"y": up, "color": colour, "tooltip": tip}
    return _whole(says, FRAME + min(16 * len(rows), 640), WAYS) | {
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 2, "aria": False},
             "encoding": {**one, "x": {"field": "start", **across}, "x2": {"field": "end"}}},
            {"mark": {"type": "point", "filled": True, "size": 70},
             "encoding": {**one, "x": {"field": "end", **across}}},
            {"mark": {"type": "point", "filled": False, "size": 40, "aria": False},
             "encoding": {**one, "x": {"field": "start", **across}}},
        ],
    }  # fmt: skip


def points(rows: Sequence[tuple[str, float, float, str]], x: str, y: str, *, says: str) -> Spec:
    """A point a client, by kind. rows: (client, x, a whole number, y, kind)."""
    kinds = list(dict.fromkeys(kind for _, _, _, kind in rows))
    values = [{"client": client, "x": a, "y": b, "kind": kind} for client, a, b, kind in rows]
    picked, pick = _pick(kinds, "kind")
    legend: Spec = {"field": "kind", "type": "nominal", "legend": _legend(kinds)}
    return _whole(says, 250, kinds) | {
        "params": pick,
        "data": {"values": values},
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": x, "axis": {"tickMinStep": 1},
                  "scale": {"zero": False, "nice": False, "padding": 10}},
            "y": {"field": "y", "type": "quantitative", "title": y,
                  "scale": {"zero": False, "nice": False, "padding": 10}},
            "color": {**legend, "scale": {"domain": kinds, "range": _cycle(COLOURS, kinds)}},
            "shape": {**legend, "scale": {"domain": kinds, "range": _cycle(SHAPES, kinds)}},
            "opacity": _when(picked, 0.85, 0.1),
            "tooltip": [
                {"field": "client"}, {"field": "kind", "title": "of"},
                {"field": "x", "title": x, "format": ".4~g"}, {"field": "y", "title": y, "format": ".4~g"},
            ],
        },
    }  # fmt: skip


def levels(rows: Sequence[tuple[str, str, Sequence[float]]], x: str, *, says: str) -> Spec:
    """A line a row: its values as points, their mean as a tick. rows: (label, kind, values)."""
    order = [label for label, _, _ in dict.fromkeys((label, kind, tuple(v)) for label, kind, v in rows)]
    kinds = list(dict.fromkeys(kind for _, kind, _ in rows))
    values = [{"label": label, "kind": kind, "x": v} for label, kind, of in rows for v in of]
    means = [{"label": label, "kind": kind, "x": float(np.mean(of))} for label, kind, of in rows]
    up = {
        "field": "label", "type": "nominal", "sort": order, "title": None,
        "axis": {"labelLimit": 190, "ticks": False, "grid": False, "labelOverlap": False},
    }  # fmt: skip
    across = {"field": "x", "type": "quantitative", "title": x, "scale": {"zero": False, "nice": False, "padding": 10}}
    colour = {
        "field": "kind", "type": "nominal", "scale": {"domain": kinds, "range": _cycle(COLOURS, kinds)},
        "legend": _legend(kinds),
    }  # fmt: skip
    tip = [
        {"field": "label", "title": "of"},
        {"field": "kind", "title": "on"},
        {"field": "x", "title": x, "format": ".4~g"},
    ]
    one = {"y": up, "x": across, "color": colour, "tooltip": tip}
    return _whole(says, FRAME + 28 * len(order), kinds) | {
        "layer": [
            {"data": {"values": values}, "encoding": one,
             "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.6}},
            {"data": {"values": means}, "mark": {"type": "tick", "thickness": 3, "size": 18}, "encoding": one},
        ],
    }  # fmt: skip


def _whole(says: str, height: int, labels: Sequence[str]) -> Spec:
    """What all drawings have. height: without the legend of these labels."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json", "description": says, "width": "container",
        "height": height + LINE * (-(-len(labels) // _columns(labels)) + 1 if len(labels) > 1 else 0),
        "autosize": {"type": "fit", "contains": "padding"}, "config": CONFIG,
    }  # fmt: skip


def _legend(labels: Sequence[str]) -> Spec | None:
    """None for one alone, which the title names."""
    return {"columns": _columns(labels)} if len(labels) > 1 else None


def _columns(labels: Sequence[str]) -> int:
    """As many as a phone is wide enough for."""
    longest = max(map(len, labels), default=0)
    return 1 if longest > 18 else 2 if longest > 9 else 3


def _pick(labels: Sequence[str], field: str) -> tuple[str, list[Spec]]:
    """A menu under the drawing that picks out one of several; nothing for one alone."""
    if len(labels) < 2:
        return "", []
    bind = {"input": "select", "options": [None, *labels], "labels": ["all", *labels], "name": "show "}
    return "picked", [{"name": "picked", "select": {"type": "point", "fields": [field]}, "bind": {field: bind}}]


def _when(picked: str, there: float, else_: float) -> Spec:
    return {"condition": {"param": picked, "value": there}, "value": else_} if picked else {"value": there}


def _cycle(values: Sequence[str], of: Sequence[Any]) -> list[str]:
    return [values[i % len(values)] for i in range(len(of))]
