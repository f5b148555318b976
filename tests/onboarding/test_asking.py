"""Which pair tells most, by numbers worked out here."""

import math

import numpy as np
import pytest

from raypref.onboarding import asking


def test_a_margin_is_a_probability_with_a_lapse():
    assert asking.preferring(np.array([0.0, math.log(3), -math.inf])).tolist() == pytest.approx(
        [0.5, 0.1 + 0.8 * 0.75, 0.1], abs=1e-9
    )


def test_a_choice_makes_those_likelier_who_would_have_made_it():
    p = np.array([[0.9, 0.5], [0.3, 0.5]])
    assert asking.likeness(p, {}).tolist() == [0.5, 0.5]
    assert asking.likeness(p, {0: True}) == pytest.approx([0.75, 0.25])  # 0.9 : 0.3
    assert asking.likeness(p, {0: False}) == pytest.approx([0.125, 0.875])  # 0.1 : 0.7
    assert asking.likeness(p, {0: True, 1: False}) == pytest.approx([0.75, 0.25])  # both toss a coin on the second


def test_information_is_where_sure_people_disagree():
    p = np.array([[0.9, 0.5, 0.9], [0.1, 0.5, 0.9]])
    bits = asking.information(p, np.array([0.5, 0.5]))
    of_nine = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    assert bits == pytest.approx([1 - of_nine, 0.0, 0.0])
    assert asking.next_pair(p, {}) == 0
    assert asking.next_pair(p, {0: True}) == 1 and asking.next_pair(p, {0: True}, [1]) == 2
    assert asking.next_pair(p, {0: True}, [1, 2]) is None and asking.next_pair(p[:, :0], {}) is None


def test_people_who_choose_alike_lie_near_each_other():
    p = np.array([[0.9, 0.9, 0.1], [0.9, 0.8, 0.1], [0.1, 0.1, 0.9]])
    _, _, places = asking.plane(p)
    apart = [float(np.linalg.norm(places[i] - places[j])) for i, j in ((0, 1), (0, 2))]
    assert apart == pytest.approx([0.1, math.sqrt(3 * 0.64)], rel=0.01)
    one, centre, alone = asking.plane(p[:1])
    assert one.shape == (2, 3) and alone.tolist() == [[0.0, 0.0]] and centre.tolist() == p[0].tolist()
