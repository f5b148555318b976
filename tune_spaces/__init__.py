"""Search spaces, one file each: `python -m raypref.run NAME` and `python -m raypref.sweep NAME`."""
