"""What the aggregator's and the relay's processes prepare before the first rank comes."""

from __future__ import annotations

import resource

import pytest

from aggregator.process import open_hub


@pytest.fixture
def few_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_as_many_ranks_may_connect_as_the_system_allows_open_files(few_open_files, socket_folder):
    open_hub((f"ipc://{socket_folder}/a",), key=None, insecure=False).close(linger_seconds=0)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few_open_files, few_open_files)
