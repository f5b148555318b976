"""The tables and figures that `python -m raypref.compare` draws, a module for those that belong together; a new module
is found by its being here (`raypref.evaluation.drawings`)."""
