"""Key files: made once, for their owner only, and refused where others could have read or damaged them."""

from __future__ import annotations

import stat

import pytest

from rankside import keys
from rankside.errors import ConfigError
from rankside.transport import Hub, Link


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    keys.generate(path)
    return path


def test_a_new_key_file_belongs_to_its_owner_alone_whatever_the_umask(key_file):
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_what_is_loaded_is_what_was_written_and_no_two_files_are_alike(key_file, tmp_path):
    loaded = keys.load(key_file)
    assert [line.encode() for line in key_file.read_text().splitlines()[1:]] == list(loaded)
    assert len(set(loaded)) == 4
    keys.generate(tmp_path / "another")
    assert not set(loaded) & set(keys.load(tmp_path / "another"))


def test_an_existing_file_is_not_overwritten(key_file):
    before = key_file.read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        keys.generate(key_file)
    assert key_file.read_bytes() == before


def test_a_dangling_link_is_not_followed(tmp_path):
    (tmp_path / "key").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="exists already"):
        keys.generate(tmp_path / "key")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing/key: No such file"):
        keys.generate(tmp_path / "missing" / "key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610, 0o777])
def test_a_file_that_others_could_use_is_refused_with_what_to_do(key_file, mode):
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}: others could read it; `chmod 600` it"):
        keys.load(key_file)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_its_owner_alone_is_accepted(key_file, mode):
    key_file.chmod(mode)
    keys.load(key_file)


DAMAGES = {
    "empty": lambda _: b"",
    "cut off": lambda content: content[:-30],
    "without its title": lambda content: content.split(b"\n", 1)[1],
    "of another version": lambda content: content.replace(b"key 1", b"key 2"),
    "a key too short": lambda content: content.replace(content.split(b"\n")[2], b"short"),
    "characters that no key has": lambda content: content.replace(content.split(b"\n")[3], b"\x00" * 40),
    "one character changed": lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:],
    "binary": lambda _: bytes(range(256)),
    "lines in the manner of Windows": lambda content: content.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_refused_without_showing_what_is_in_it(key_file, damage):
    content = key_file.read_bytes()
    key_file.write_bytes(damage(content))
    with pytest.raises(ConfigError, match="is not a crossrank key file") as refusal:
        keys.load(key_file)
    assert not any(line.decode() in str(refusal.value) for line in content.split(b"\n")[1:5])


def test_a_missing_file_is_refused_with_what_makes_one(tmp_path):
    with pytest.raises(ConfigError, match=r"No such file.*crossrank keygen"):
        keys.load(tmp_path / "key")


def test_two_that_have_the_same_file_can_talk(key_file):
    loaded = keys.load(key_file)
    hub = Hub("tcp://127.0.0.1:*", keys=loaded)
    link = Link(hub.endpoints[0], keys=loaded)
    try:
        assert link.send(b"hello")
        [(identity, payload)] = hub.receive(wait_seconds=30, at_most=1)
        hub.send(identity, payload + b" back")
        assert link.receive(wait_seconds=30) == [b"hello back"]
    finally:
        link.close()
        hub.close(linger_seconds=0)


def without_keys(endpoint, loaded, another):
    return Link(endpoint)


def with_another(endpoint, loaded, another):
    return Link(endpoint, keys=another)


def with_another_client_pair(endpoint, loaded, another):
    mixed = loaded._replace(client_public=another.client_public, client_secret=another.client_secret)
    return Link(endpoint, keys=mixed)


def with_another_server_key(endpoint, loaded, another):
    return Link(endpoint, keys=loaded._replace(server_public=another.server_public))


@pytest.mark.parametrize(
    "connect", [without_keys, with_another, with_another_client_pair, with_another_server_key]
)
def test_who_has_not_all_of_the_key_is_turned_away_counted_and_never_heard(
    key_file, tmp_path, within, connect
):
    keys.generate(tmp_path / "another")
    loaded = keys.load(key_file)
    hub = Hub("tcp://127.0.0.1:*", keys=loaded)
    bad = connect(hub.endpoints[0], loaded, keys.load(tmp_path / "another"))
    good = Link(hub.endpoints[0], keys=loaded)
    heard = []
    try:
        bad.send(b"let me in")
        good.send(b"hello")

        def turned_away():
            heard.extend(payload for _, payload in hub.receive(wait_seconds=0.02, at_most=9))
            return hub.turned_away and heard

        within(turned_away)
        assert heard == [b"hello"]
    finally:
        bad.close()
        good.close()
        hub.close(linger_seconds=0)
