"""Which seed a run has when none is given."""

from __future__ import annotations

import pytest

from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.generate.units import draw, units


def test_nightly_draws_anew_and_the_others_do_not() -> None:
    nightly = [RunSettings(backends=("x",), profile="nightly") for _ in range(3)]
    assert len({settings.seed for settings in nightly}) == 3
    for profile in ("quick", "ci", "gpu"):
        assert {RunSettings(backends=("x",), profile=profile).seed for _ in range(3)} == {0}


def test_two_nightly_runs_draw_other_cases() -> None:
    first, second = (
        {
            case.id
            for case in draw(
                units("nightly", RunSettings(backends=("x",), profile="nightly").seed, 24)[0]
            )
        }
        for _ in range(2)
    )
    assert first
    assert not first & second


def test_a_given_seed_is_kept_in_every_profile() -> None:
    assert RunSettings(backends=("x",), profile="nightly", seed=7).seed == 7
    with pytest.raises(SettingsError, match="seed is -2"):
        RunSettings(backends=("x",), seed=-2)
