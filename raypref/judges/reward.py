"""Reward-model scores (S1 C.3.2): any sequence classifier of the hub's format scores both responses to a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raypref.config import UserError
from raypref.data.forms.pairs import TURN
from raypref.judges.judgement import Judgement, file_name, spent
from raypref.judges.responses import Response, Sections
from raypref.judges.win_rate import interval
from raypref.tools import console

HUMAN = "\n\nHuman:"


@dataclass(frozen=True)
class Reward:
    """The judge and its options."""

    SAMPLES: ClassVar = 100

    reward_model: tuple[str, ...] = ()
    """Folders or hub ids of sequence classifiers, each scoring all responses; NAME=ID names one, such as helpful=…
    harmless=…"""
    label: int = -1
    """Whose logit is the score: the last one, of a classifier with one it is that."""
    batch: int = 16
    """Dialogues in one pass."""
    max_length: int = 1024
    """Longest dialogue in tokens, or the classifier's own limit; longer ones lose text from the left."""

    def each(self) -> list[Reward]:
        """A judge for each model, at least one, each with a name of its own; else `UserError`."""
        names = [named(word)[0] for word in self.reward_model]
        if not names:
            raise UserError("--by reward needs --reward-model: a folder or a hub id, such as helpful=OWNER/NAME")
        if len(set(names)) < len(names):
            raise UserError(
                f"--reward-model: several are called {max(names, key=names.count)}; name them, as a=ID b=ID"
            )
        return [replace(self, reward_model=(word,)) for word in self.reward_model]

    def judge(self, folder: Path, lines: Sections, seed: int) -> Judgement:
        """By its one model; see `each`."""
        (word,) = self.reward_model
        name, identity = named(word)
        scorer = Scorer(identity, self)
        sections = []
        with console.Progress(sum(map(len, lines.values())), name) as progress:
            for (group, unseen), section in lines.items():
                ours = scorer([dialogue(line.prompt, line.ours) for line in section])
                theirs = scorer([dialogue(line.prompt, line.theirs) for line in section])
                numbers = summary(section, ours, theirs, seed, f"{group} {unseen}")
                sections.append({"axis": group, "unseen": unseen, **numbers})
                progress.advance(len(section))
        settings = {"model": identity, "label": self.label, "max_length": scorer.max_length}
        return {"judge": file_name(f"reward-{name}"), "settings": settings, "sections": sections, **spent()}


def named(word: str) -> tuple[str, str]:
    """`helpful=ID` -> ('helpful', 'ID'); an ID alone is named by its last part."""
    name, equals, identity = word.partition("=")
    if not equals:
        name, identity = word.rstrip("/").rsplit("/", 1)[-1], word
    if not name or not identity:
        raise UserError(f"--reward-model takes a folder, a hub id or NAME=ID, not {word!r}")
    return name, identity


def adapted(identity: str) -> tuple[str, Any]:
    """The base and the head [labels, H] of a PEFT adapter of a sequence classifier; the model itself and None where it
    is no adapter. Raises `ValueError` for an adapter without a head."""
    from transformers.utils.peft_utils import find_adapter_config_file

    if not find_adapter_config_file(identity):
        return identity, None
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    heads = [t for name, t in load_peft_weights(identity, device="cpu").items() if name.endswith("score.weight")]
    if not heads:
        raise ValueError("its adapter has no head (score.weight); give a reward model's")
    return str(PeftConfig.from_pretrained(identity).base_model_name_or_path), heads[0]


def dialogue(prompt: str, response: str) -> str:
    """Both in the form of HH-RLHF's transcripts, in which a prompt may be already."""
    said = prompt.strip()
    opened = f"\n\n{said}" if said.startswith(HUMAN.strip()) else f"{HUMAN} {said}"
    return f"{opened}{TURN} {response.strip()}"


def _is_mlp(head: Path) -> bool:
    """Whether a run's head has a hidden layer. Of a Bayesian client with a linear one, a classifier is beside it."""
    from safetensors import safe_open

    from raypref.models.head import HIDDEN

    if not head.exists():
        return False
    with safe_open(head, framework="pt") as file:
        return f"{HIDDEN}.weight" in file.keys()  # noqa: SIM118  a file of tensors is no mapping


class Scorer:
    """A frozen classifier on the first GPU, or the CPU."""

    def __init__(self, identity: str, options: Reward) -> None:
        """Raises `UserError` where it cannot be read, or has no such label."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from raypref.models.selector import model_path

        for name, number in (("batch", options.batch), ("max-length", options.max_length)):
            if number < 1:
                raise UserError(f"--{name} is {number}; it must be at least 1")
        identity = model_path(identity, "--reward-model ")
        if _is_mlp(Path(identity) / "head.safetensors"):
            raise UserError(
                f"--reward-model {identity}: its head is an MLP, which no sequence classifier has; train one with "
                "--reward.hidden 0"
            )
        try:
            base, head = adapted(identity)
            labels = {} if head is None else {"num_labels": head.shape[0]}
            self._tokenizer: Any = AutoTokenizer.from_pretrained(base, truncation_side="left", padding_side="right")
            model, loaded = AutoModelForSequenceClassification.from_pretrained(base, output_loading_info=True, **labels)
            if head is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, identity)
                loaded["missing_keys"] = set(loaded["missing_keys"]) - {"score.weight"}
        except (OSError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise UserError(f"--reward-model {identity}: cannot be read as a sequence classifier: {line}") from error
        if loaded["missing_keys"]:
            lacks = ", ".join(sorted(loaded["missing_keys"]))
            raise UserError(f"--reward-model {identity}: is no trained classifier, it lacks {lacks}; give one that is")
        if not -model.config.num_labels <= options.label < model.config.num_labels:
            raise UserError(f"--label is {options.label}; {identity} has {model.config.num_labels} logits")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # A decoder is read at the last token that is no padding.
        model.config.get_text_config().pad_token_id = self._tokenizer.pad_token_id
        model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        self._options = options
        limits = [options.max_length, self._tokenizer.model_max_length]
        limits.append(getattr(model.config, "max_position_embeddings", None) or options.max_length)
        self.max_length = min(limits)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N] float64 scores."""
        import torch

        out: list[float] = []
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding
        for at in range(0, len(texts), self._options.batch):
            batch = [texts[i] for i in by_length[at : at + self._options.batch]]
            ids = self._tokenizer(
                batch, truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
            ).to(self._model.device)
            with torch.inference_mode():
                out += self._model(**ids).logits[:, self._options.label].double().tolist()
        scores = np.empty(len(texts))
        scores[by_length] = out
        return scores


def summary(
    lines: Sequence[Response], ours: np.ndarray, theirs: np.ndarray, seed: int = 0, section: str = ""
) -> dict[str, Any]:
    """The numbers of one section, JSON-able: mean scores, and ours - theirs with its bootstrap interval.

    ours, theirs: [N] scores of the two responses of each line.
    """
    clients = [line.client for line in lines]
    gap = ours - theirs
    return {
        "prompts": len(lines),
        "clients": len(set(clients)),
        "ours": float(ours.mean()),
        "theirs": float(theirs.mean()),
        "difference": float(gap.mean()),
        "interval": interval(gap.tolist(), clients, seed, section),
        "scores": gap.tolist(),
        "client_of": clients,
    }
