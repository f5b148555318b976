"""Folds: nobody is tested on what anybody trained on, whatever the order of rows, people or responses."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from raypref.data.federation import FOLDS
from raypref.data.splits import crossing, exact_folds, key_fold, pair_key, pairs_needed, value_fold

SHARES = st.tuples(st.floats(0.05, 0.45), st.floats(0.05, 0.45))
KEYS = st.lists(st.integers(0, 10_000).map(lambda i: pair_key("p", str(i), "other")), max_size=40, unique=True)


def pair_fold(prompt: str, a: str, b: str, validation: float, test: float) -> str:
    return key_fold(pair_key(prompt, a, b), validation, test)


@given(st.text(), st.text(), st.text(), SHARES)
def test_a_pair_has_one_fold_in_either_order_and_spacing(prompt, a, b, shares):
    fold = pair_fold(prompt, a, b, *shares)
    assert fold in FOLDS
    assert pair_fold(f"\n{prompt} ", f" {b}", f"{a}\t", *shares) == fold


def test_what_differs_within_is_another_pair():
    texts = [
        ("p", "ab", "c"),
        ("p", "a", "bc"),
        ("pa", "b", "c"),
        ("", "pab", "c"),
        ("p", "a b", "c"),
        ("p", "a  b", "c"),
    ]
    assert len({pair_key(*t) for t in texts}) == len(texts)


def test_folds_do_not_change_between_versions():
    """A pinned hash: results and data sets out there rely on the folds."""
    assert pair_key("Why?", "So.", "Because.").hex() == "f36d17220ed80c28dbab3b863ea419df"
    assert [pair_fold("Why?", "So.", str(i), 0.3, 0.3) for i in range(6)] == [
        "train",
        "train",
        "train",
        "validation",
        "train",
        "train",
    ]


def test_shares_are_as_asked_up_to_chance():
    n, validation, test = 20_000, 0.16, 0.1
    counts = Counter(pair_fold("p", str(i), "x", validation, test) for i in range(n))
    for name, share in (("validation", validation), ("test", test)):
        assert abs(counts[name] - n * share) < 4 * (n * share * (1 - share)) ** 0.5  # four standard deviations


@given(st.binary(min_size=16, max_size=16), SHARES, SHARES)
def test_other_shares_never_turn_validation_into_test(key, before, after):
    assert {key_fold(key, *before), key_fold(key, *after)} != {"validation", "test"}


@given(st.integers(1, 1000), SHARES)
def test_pairs_needed_leave_no_client_without_a_fold_but_for_a_chance(clients, shares):
    def missed(n):
        return clients * sum((1 - share) ** n for share in (*shares, 1 - sum(shares)))

    needed = pairs_needed(clients, *shares, chance=0.01)
    assert missed(needed) <= 0.01 * (1 + 1e-9) and 3 * missed(needed - 1) > 0.01


def test_pairs_needed_by_hand():
    # 120 · 0.84^n <= 0.01: n >= ln(12,000) / -ln(0.84) = 9.393 / 0.1744 = 53.9
    assert pairs_needed(40, 0.16, 0.16) == 54


@given(st.text(min_size=1), SHARES)
def test_a_value_has_one_fold(topic, shares):
    assert value_fold(topic, *shares) == value_fold(f" {topic} ", *shares) in FOLDS


@given(KEYS, st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_exact_counts_are_exact_and_independent_of_order(keys, validation, test, random):
    folds = dict(zip(keys, exact_folds("c", keys, validation, test), strict=True))
    shuffled = random.sample(keys, len(keys))
    assert dict(zip(shuffled, exact_folds("c", shuffled, validation, test), strict=True)) == folds
    counts = Counter(folds.values())
    assert counts["validation"] == min(validation, len(keys))
    assert counts["test"] == min(test, len(keys) - counts["validation"])


@given(KEYS, st.integers(0, 40), st.integers(1, 5), st.integers(1, 5))
def test_both_choices_of_a_pair_stay_in_one_fold(keys, doubled, validation, test):
    rows = keys + keys[:doubled]
    folds = exact_folds("c", rows, validation, test)
    assert crossing(zip(rows, folds, strict=True)) == 0
    counts = Counter(folds)
    assert counts["validation"] <= validation and counts["test"] <= test
    singles = len(keys) - len(keys[:doubled])
    if singles >= validation + test:  # single rows can fill any gap that a double leaves
        assert (counts["validation"], counts["test"]) == (validation, test)


def test_exact_counts_draw_differently_for_every_client():
    keys = [pair_key("p", str(i), "x") for i in range(40)]
    drawn = {client: tuple(exact_folds(client, keys, 10, 10)) for client in ("a", "b", "c")}
    assert len(set(drawn.values())) == 3


def test_crossing_counts_keys():
    inside = [(b"1", "train"), (b"1", "train"), (b"2", "test")]
    assert crossing([]) == crossing(inside) == 0
    assert crossing([*inside, (b"1", "test"), (b"1", "validation"), (b"2", "train"), (b"3", "test")]) == 2
