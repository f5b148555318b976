"""The tiny base shipped with the package, made by `make.py`: `AutoModelForCausalLM.from_pretrained(PATH)`."""

from pathlib import Path

PATH: Path = Path(__file__).parent
"""Folder with config.json, model.safetensors and the tokenizer's files."""
