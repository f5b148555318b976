"""Which fold a pair is in: pure functions of the data, so that nobody trains on a pair that somebody is tested on.

No function here takes a seed. Folds are a property of the data: every seed, method and machine then reports on the same
test pairs, so a spread over seeds is a spread of training alone, and a model trained with one seed can be judged under
another without having seen the answers. Nor does the order of rows or the set of people matter.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence


def pair_key(prompt: str, a: str, b: str) -> bytes:
    """A name of 16 bytes for the unordered pair {a, b} under its prompt; white space at the ends does not count."""
    return _digest(b"pair", prompt.strip(), *sorted((a.strip(), b.strip())))


def value_fold(value: str, validation: float, test: float) -> str:
    """The fold of every row that has this value in the column that splits (such as a topic)."""
    return key_fold(_digest(b"value", value.strip()), validation, test)


def key_fold(key: bytes, validation: float, test: float) -> str:
    """The fold of a key with the given shares (`validation` + `test` < 1).

    Test takes the low end of the hash's range and validation the high end: a change of either share moves keys between
    that fold and training only, never from validation to test.
    """
    position = (int.from_bytes(key[:8], "big") >> 11) / 2**53  # in [0, 1), exact in a double
    return "test" if position < test else "validation" if position >= 1 - validation else "train"


FOLD_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    "test": "test",
}
"""What others call a fold, in small letters -> the fold."""


def pairs_needed(clients: int, validation: float, test: float, chance: float = 0.01) -> int:
    """Pairs a client with which all of `clients` have one in every fold, but for a `chance` of at most that.

    n hashed pairs miss a fold of share s with probability (1 - s)^n; summed over three folds and all clients.
    """
    smallest = min(validation, test, 1 - validation - test)
    return math.ceil(math.log(chance / (3 * clients)) / math.log1p(-smallest))


def exact_folds(client: str, keys: Sequence[bytes], validation: int, test: int) -> list[str]:
    """The folds of one client's rows with exactly `validation` and `test` rows held out (S2 2.3: 50 and 50).

    Distinct keys are shuffled by a hash keyed by the client, and each goes, with all its rows, to the first of
    validation, test and training that has room. A key of two rows (the client chose both ways) never crosses folds;
    fewer rows than asked for are held out only where the client has too few. Across clients a pair may be in different
    folds: count them with `crossing`.
    """
    rows, room, fold = Counter(keys), {"validation": validation, "test": test}, {}
    for key in sorted(rows, key=lambda key: _digest(b"exact", client, key)):
        fold[key] = next((name for name in room if rows[key] <= room[name]), "train")
        if fold[key] in room:
            room[fold[key]] -= rows[key]
    return [fold[key] for key in keys]


def crossing(assigned: Iterable[tuple[bytes, str]]) -> int:
    """How many keys are in more than one fold, of (key, fold) over all people's rows."""
    folds: dict[bytes, set[str]] = {}
    for key, fold in assigned:
        folds.setdefault(key, set()).add(fold)
    return sum(len(names) > 1 for names in folds.values())


def _digest(purpose: bytes, *parts: str | bytes) -> bytes:
    """blake2b of the parts, each behind its length (so that no two lists of parts read alike), apart by purpose."""
    state = hashlib.blake2b(digest_size=16, person=purpose)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "big") + raw)
    return state.digest()
