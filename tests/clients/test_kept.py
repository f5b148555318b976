"""What clients keep between rounds: sparse, by client, and the same after a file."""

import numpy as np

from raypref.algorithms.base import State
from raypref.clients.kept import Kept
from raypref.tools import checkpoint


def test_only_who_has_something_takes_room(tmp_path):
    """Of a hundred thousand clients two keep something, of different lengths; one of them two things."""
    kept = Kept().updated([99_999, 7], [{"a": np.arange(3.0)}, {"a": np.zeros(1), "b": np.array([[1, 2]])}])
    assert kept.of([0, 7]) == [{}, kept.by_client[7]] and len(kept.by_client) == 2
    checkpoint.save(tmp_path / "s", *checkpoint.take_apart(State(round=3, kept=kept)))
    again = checkpoint.put_together(State, *checkpoint.load(tmp_path / "s"))
    assert again.round == 3 and again.kept.by_client.keys() == kept.by_client.keys()
    for c, arrays in kept.by_client.items():
        assert again.kept.by_client[c].keys() == arrays.keys()
        for name, values in arrays.items():
            assert np.array_equal(again.kept.by_client[c][name], values)
            assert again.kept.by_client[c][name].dtype == values.dtype


def test_a_cohort_replaces_its_own_and_nothing_else():
    first = Kept().updated([1, 2], [{"x": np.ones(1)}, {"x": np.ones(2)}])
    second = first.updated([2, 3], [{"x": np.zeros(1)}, {}])
    assert [len(second.by_client[c]["x"]) for c in (1, 2)] == [1, 1] and 3 not in second.by_client
    assert len(first.by_client[2]["x"]) == 2  # a state is a value
    assert first.updated([5], [{}]) is first


def test_a_state_without_anything_kept_is_as_small_as_before(tmp_path):
    tensors, values = checkpoint.take_apart(State(round=1))
    assert tensors == {} and values == {"round": 1}
