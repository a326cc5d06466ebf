"""Lower bounds on TV from samples, against laws whose TV is known."""

from __future__ import annotations

import numpy as np
import pytest

from simulate.tv_bounds import event_tv, tv_lower_bound


def test_the_bound_on_tv_is_one_and_sees_what_it_can() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.random(4000), rng.random(4000)
    assert tv_lower_bound(ours, theirs)[0] == 0
    lower, value = tv_lower_bound(ours + 0.4, theirs)
    assert 0.3 < lower < 0.4 < value + 0.05  # TV of two unit intervals 0.4 apart is 0.4
    assert lower < tv_lower_bound(ours + 0.4, theirs, 0.5)[0]
    with pytest.raises(ValueError, match="NaN"):
        tv_lower_bound(np.array([np.nan]), theirs)


@pytest.mark.parametrize("seed", range(5))
def test_an_event_stands_below_the_distance_and_near_it(seed: int) -> None:
    law, other = np.array([[0.4, 0.1], [0.2, 0.3]]), np.array([[0.25, 0.25], [0.25, 0.25]])
    tv = 0.5 * float(np.abs(law - other).sum())
    codes = np.random.default_rng(seed).choice(4, 20_000, p=law.ravel())
    found = event_tv(np.stack(np.unravel_index(codes, (2, 2)), axis=1), other, 0.9999)
    assert found.lower <= tv
    assert found.value == pytest.approx(tv, abs=0.03)
    # The same law: nothing to find.
    own = event_tv(np.stack(np.unravel_index(codes, (2, 2)), axis=1), law, 0.9999)
    assert own.lower <= 0
