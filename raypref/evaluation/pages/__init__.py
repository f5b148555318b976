"""A page of finished runs: one HTML file with all that is known of them, to be opened without network.

What runs say is read by the rest of `raypref.evaluation`; here it is only laid out. A section is a file with a function
from the `Material` to a `Section` (or None, where the runs have nothing of the kind), and a line in `SECTIONS`.
"""

from raypref.evaluation.pages.page import Material, Section, render
from raypref.evaluation.pages.sections import SECTIONS, written

__all__ = ["SECTIONS", "Material", "Section", "render", "written"]
