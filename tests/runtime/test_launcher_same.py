"""Every test of the launch path, again, with the C launcher in front."""

import pytest

from tests.runtime import launchers
from tests.runtime.test_launch import *  # noqa: F403

pytestmark = launchers.needs_c


@pytest.fixture(autouse=True)
def c_launcher():
    with launchers.launcher("c"):
        yield
