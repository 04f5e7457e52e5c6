"""A state that does not fit is refused at load, with the keys that decide its size."""

import pytest

from outrider.assemble.memory_check import MARGIN_BYTES, check_fits, free_bytes
from outrider.errors import ConfigError
from outrider.state.spec import AttentionSpec, StateSpec

SPEC = StateSpec(attention=AttentionSpec(layers=2, heads=2, width=64), delta=None, capacity=8)


def test_what_fits_exactly_is_allowed():
    check_fits(SPEC, 1000, SPEC.bytes(1000) + MARGIN_BYTES)


def test_one_byte_less_is_refused_by_name():
    with pytest.raises(ConfigError, match="does not fit") as caught:
        check_fits(SPEC, 1000, SPEC.bytes(1000) + MARGIN_BYTES - 1)
    assert "target.max_length = 1000" in str(caught.value)
    assert "state.capacity = 8" in str(caught.value)


def test_free_memory_comes_from_the_system(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2000 kB\nMemAvailable:      1000 kB\n")
    assert free_bytes(meminfo) == 1000 * 1024
    assert (free_bytes(tmp_path / "none") or 1) > 0
