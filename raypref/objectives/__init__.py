"""What clients minimise, one file each. To add one: write its file, add its line here."""

from __future__ import annotations

OBJECTIVES: dict[str, str] = {
    "choice": "raypref.objectives.choice:Choice",
    "variational": "raypref.objectives.variational:Variational",
    "dpo": "raypref.objectives.dpo:DPO",
    "reward": "raypref.objectives.reward:Reward",
    "bayes": "raypref.objectives.bayes:Bayes",
}
"""Name -> `module:Class`, in the order in which tables show their forms."""
