"""The tiny pretrained base shipped with the package: `AutoModelForCausalLM.from_pretrained(PATH)`; `make.py` made it."""

from pathlib import Path

PATH: Path = Path(__file__).parent
"""Folder with config.json, model.safetensors and the tokenizer's files."""
