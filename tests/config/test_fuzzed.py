"""Configurations as people and files may give them: any value in any field is taken or refused in one line."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypref.config import RunConfig, UserError, flatten, from_dict, override, read_config, to_dict, validate
from raypref.tools import cli

FIELDS = sorted(flatten(to_dict(RunConfig())))
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 300), st.integers(), st.floats(), st.text(max_size=6)),
    st.lists(st.one_of(st.integers(-2, 90), st.text(max_size=3), st.floats(), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def one_line(error: Exception) -> bool:
    return bool(str(error)) and "\n" not in str(error)


@FUZZ
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_a_file_with_any_values_is_read_or_refused(tmp_path, values):
    """As `config.json` of another version, or edited by hand."""
    tree = to_dict(RunConfig())
    for key, value in values.items():
        *path, last = key.split(".")
        place = tree
        for part in path:
            place = place[part]
        place[last] = value
    (tmp_path / "config.json").write_text(json.dumps(tree))
    try:
        validate(read_config(tmp_path))
    except UserError as error:
        assert one_line(error)


@FUZZ
@given(st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(["data", "optim", "seed", "x"]), inner)))
def test_a_tree_of_any_shape_is_read_or_refused(tree):
    try:
        from_dict(tree)
    except UserError as error:
        assert one_line(error)


@FUZZ
@given(st.lists(st.one_of(st.sampled_from([f"--{key.replace('_', '-')}" for key in FIELDS]), st.text(max_size=5))))
def test_any_words_are_read_or_refused(words):
    try:
        validate(cli.parse(RunConfig, words, "run"))
    except UserError as error:
        assert one_line(error)
    except SystemExit as stop:
        assert not stop.code and ("--help" in words or "-h" in words)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e308])
@pytest.mark.parametrize("field", [key for key, v in flatten(to_dict(RunConfig())).items() if isinstance(v, float)])
def test_no_field_takes_a_number_that_is_none(field, value):
    """NaN and infinity nowhere; what is left out of range is each field's own."""
    try:
        validate(override(RunConfig(), {field: value}))
    except UserError as error:
        assert one_line(error)
    else:
        assert value in (-1.0, 1e308)
