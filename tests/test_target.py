"""Targets: which runs what, and the limits that are checked against."""

from __future__ import annotations

import pytest

from tilejit.errors import TargetError
from tilejit.target import TARGETS, Target


@pytest.mark.parametrize(
    ("name", "minimum", "has"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", False),
        ("sm_86", "sm_80", True),
        ("sm_90", "sm_90a", False),
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_90a", False),
        ("sm_100a", "sm_90", True),
        ("sm_100", "sm_100f", False),
        ("sm_100f", "sm_100f", True),
        ("sm_100f", "sm_100a", False),
        ("sm_103a", "sm_100f", True),
        ("sm_103f", "sm_100f", True),
        ("sm_100a", "sm_103f", False),
        ("sm_110a", "sm_100f", False),
        ("sm_121a", "sm_120f", True),
        ("sm_120a", "sm_100f", False),
        ("sm_120a", "sm_100f|sm_110f|sm_120f", True),
        ("sm_90a", "sm_100f|sm_110f|sm_120f", False),
    ],
)
def test_supports(name: str, minimum: str, has: bool) -> None:
    assert Target.parse(name).supports(minimum) is has


def test_names_round_trip() -> None:
    for name, target in TARGETS.items():
        assert target.name == name == str(target)
        assert Target.parse(name) == target
        assert target.limits.smem_per_block_bytes < target.limits.smem_per_sm_bytes


@pytest.mark.parametrize("name", ["sm_75", "sm_91", "sm_80a", "sm_90f", "90a", ""])
def test_unknown_targets_are_refused(name: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target.parse(name)
    assert caught.value.codes == ("target/unknown",)


def test_the_target_of_a_device() -> None:
    assert Target.of_capability(9, 0).name == "sm_90a"
    assert Target.of_capability(8, 6).name == "sm_86"
    assert Target.of_capability(10, 3).name == "sm_103a"
    assert Target.of_capability(13, 0).name == "sm_121"
    with pytest.raises(TargetError) as caught:
        Target.of_capability(7, 5)
    assert caught.value.codes == ("target/too-old",)


def test_the_limits_of_an_h100() -> None:
    limits = Target.parse("sm_90a").limits
    assert limits.smem_per_block_bytes == 232448
    assert limits.static_smem_bytes == 49152
    assert limits.registers_per_thread == 255
    assert limits.max_cluster_ctas == 16
    assert limits.tmem_columns == 0
    assert Target.parse("sm_100a").limits.tmem_columns == 512


def test_a_minimum_must_be_a_target_name() -> None:
    with pytest.raises(ValueError, match="not the name of a target"):
        Target.parse("sm_90").supports("90")
