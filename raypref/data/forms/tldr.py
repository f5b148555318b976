"""OpenAI's TL;DR comparisons: the worker chose one of two summaries of a post (Stiennon et al. 2020; the real data of
S2 2.3)."""

from __future__ import annotations

from collections.abc import Sequence

from raypref.config import DataConfig
from raypref.data.forms import Form, each
from raypref.data.forms.pairs import NO_PROMPT
from raypref.data.rows import Row, Unusable

PAPER = "--data.cover-column split --data.cover-min-rows 100 --data.exact-counts 50 50 --data.template tldr"
"""What S2 2.3 does with TL;DR's comparisons."""


def pair(row: Row) -> Row:
    """The pair of one row, or raises `Unusable`.

    Rows on news articles (CNN/DM), which the same files may hold, have `article` in the place of `post`.
    """
    info, summaries, choice = row.get("info"), row.get("summaries"), row.get("choice")
    if choice not in (0, 1):
        raise Unusable("no choice between the two summaries")
    if not isinstance(summaries, list) or len(summaries) != 2 or not all(isinstance(s, dict) for s in summaries):
        raise Unusable("not two summaries")
    info = info if isinstance(info, dict) else {}
    head = {
        "SUBREDDIT": info.get("subreddit") and f"r/{info['subreddit']}",
        "TITLE": info.get("title"),
        "POST": info.get("post") or info.get("article"),
    }
    if not head["POST"]:
        raise Unusable(NO_PROMPT)
    return {
        "client_id": row.get("worker"),
        "prompt": "\n\n".join(f"{name}: {text}" for name, text in head.items() if text),
        "chosen": summaries[int(choice)].get("text"),
        "rejected": summaries[1 - int(choice)].get("text"),
    }


def hint(config: DataConfig, columns: Sequence[str]) -> str:
    """Names the paper's selection of people, where all of TL;DR's own splits are there and nobody is selected."""
    unfiltered = not config.cover_column and "split" in columns
    return f"the paper's selection of people is {PAPER} (S2 2.3)" if unfiltered else ""


FORM = Form(
    columns=frozenset({"info", "summaries", "choice", "worker"}),
    about="a post of TL;DR (info) with two summaries, and which of them a worker chose",
    pairs=each(pair),
    hint=hint,
)
