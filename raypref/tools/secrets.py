"""Keeps keys, tokens and passwords out of whatever is printed or written down.

A secret is the value of an environment variable that is called after one, or the password of a URL, in a variable or in
the text itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

MASK = "***"
NAMES = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_ID)?$")
"""Names of variables that hold a secret: OPENAI_API_KEY, HF_TOKEN, MLFLOW_TRACKING_PASSWORD, AWS_ACCESS_KEY_ID, …"""
USER = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?P<name>[^\s/@:'\"]*)(?P<password>:[^\s/'\"]*)?@", re.IGNORECASE)
"""Whom a URL names: `://user:password@`, or `://token@`."""
SHORTEST = 6
"""Characters; a shorter value is no secret, and would be found in any text."""


def secrets() -> Iterator[str]:
    """The secrets of this process's environment, also as they are inside a URL."""
    for name, value in os.environ.items():
        if NAMES.search(name.upper()):
            yield value.strip()
        for user in USER.finditer(value):
            secret = (user["password"] or "").removeprefix(":") or user["name"]
            yield from (secret, unquote(secret))


def hidden(text: str) -> str:
    """The text with `***` in the place of every secret."""
    out = USER.sub(lambda user: f"{user['scheme']}{_named(user)}@", text)
    for secret in sorted({secret for secret in secrets() if len(secret) >= SHORTEST}, key=len, reverse=True):
        out = out.replace(secret, MASK)
    return out


def _named(user: re.Match[str]) -> str:
    """A user without a password may be a token."""
    return f"{user['name']}:{MASK}" if user["password"] else MASK
