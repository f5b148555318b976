"""People whom a run never met, made known to it by a few choices: `learner.py` is what they become, `asking.py` which
pairs tell most, `expecting.py` the accuracy to expect, `interview.py` one person's interview, `terminal.py` and
`page.py` how it looks."""
