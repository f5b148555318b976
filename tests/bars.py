"""A progress bar that does what a test wants in the middle of a run."""


def acting(phase, act):
    """Calls `act(advances so far)` at every advance of a bar whose label has `phase` in it."""

    class Bar:
        def __init__(self, total, label, done):
            self.label, self.seen = label, 0

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def advance(self, n, note=""):
            self.seen += 1
            if phase in self.label:
                act(self.seen)

    return Bar
