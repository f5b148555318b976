"""Makes `vega.js.gz`, what draws the figures of a page: `python -m raypref.evaluation.pages.make_vega`.

It is Vega, Vega-Lite and Vega-Embed in one file, as vl-convert-python puts them together (`pip install
vl-convert-python==1.9.*`); their licences are in `vega.LICENSE.txt`. It is kept here because putting it together takes
seconds and a package of 80 MB, and a page needs it whenever a run ends.
"""

from __future__ import annotations

import gzip
import importlib
import sys
from typing import Any

from raypref.evaluation.pages.page import VEGA
from raypref.tools import checkpoint


def main() -> int:
    """Write the file; the same versions make the same bytes."""
    vl_convert: Any = importlib.import_module("vl_convert")
    script = vl_convert.javascript_bundle()
    checkpoint.write_bytes(VEGA, gzip.compress(script.encode(), 9, mtime=0))
    print(f"{VEGA}: Vega {vl_convert.get_vega_version()}, Vega-Embed {vl_convert.get_vega_embed_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
