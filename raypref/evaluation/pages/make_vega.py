"""Makes `vega.js.gz`, what draws the figures of a page: `python -m raypref.evaluation.pages.make_vega`.

It is Vega, Vega-Lite and Vega-Embed in one file, as vl-convert-python (in the extra `dev`) puts them together; their
licences are in `vega.LICENSE.txt`. It is kept here because putting it together takes seconds and a package of 80 MB,
and a page needs it whenever a run ends.
"""

from __future__ import annotations

import gzip
import sys

from raypref.evaluation.pages.page import VEGA
from raypref.tools import checkpoint


def main() -> int:
    """Write the file; the same versions make the same bytes."""
    import vl_convert  # type: ignore[import-not-found,unused-ignore]

    script = vl_convert.javascript_bundle()
    checkpoint.write_bytes(VEGA, gzip.compress(script.encode(), 9, mtime=0))
    print(f"{VEGA}: Vega {vl_convert.get_vega_version()}, Vega-Embed {vl_convert.get_vega_embed_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
