"""Judges of a policy's responses beside the frozen base's: one file each, with its options, and a line below."""

from __future__ import annotations

from raypref.judges.endpoint import Endpoint
from raypref.judges.judgement import Judge
from raypref.judges.reward import Reward
from raypref.judges.style import Style

JUDGES: dict[str, type[Judge]] = {"style": Style, "endpoint": Endpoint, "reward": Reward}
"""Name -> judge; the name is what --by takes."""
