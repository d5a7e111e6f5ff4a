"""Atomic writes: a reader sees the old content or the new one, and no temporary file stays."""

import errno
from pathlib import Path

import numpy as np
import pytest

from hrm_host import atomic

FULL = Path("/dev/full")


def test_a_file_is_replaced_whole_or_stays_as_it_is(tmp_path: Path):
    file = tmp_path / "settings.json"
    atomic.write_text(file, "old")
    atomic.write_text(file, "größer")
    with pytest.raises(OSError, match="disk full"):
        _fail_within(file)
    assert file.read_bytes() == "größer".encode()
    assert list(tmp_path.iterdir()) == [file]


def _fail_within(file: Path) -> None:
    with atomic.new_file(file) as unfinished:
        unfinished.write_bytes(b"half of the n")
        raise OSError("disk full")


def _stop_within(target: Path) -> None:
    with atomic.new_directory(target) as directory:
        (directory / "file").write_text("half")
        raise RuntimeError("stopped")


def test_new_directory_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "deep" / "target"
    with pytest.raises(RuntimeError, match="stopped"):
        _stop_within(target)
    assert list(target.parent.iterdir()) == []
    with atomic.new_directory(target) as directory:
        (directory / "file").write_text("whole")
        assert not target.exists()
    assert (target / "file").read_text() == "whole"
    with pytest.raises(FileExistsError, match="choose another path"), atomic.new_directory(target):
        pass
    with atomic.new_directory(target, replace=True) as directory:
        (directory / "file").write_text("another")
    assert (target / "file").read_text() == "another"
    assert list(target.parent.iterdir()) == [target]


def test_a_file_system_may_not_know_syncing_but_its_faults_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unsynced(error: int) -> None:
        raise OSError(error, "not synced")

    monkeypatch.setattr("os.fsync", lambda _: unsynced(errno.EINVAL))
    atomic.write_text(tmp_path / "file", "kept")
    monkeypatch.setattr("os.fsync", lambda _: unsynced(errno.EIO))
    with pytest.raises(OSError, match="not synced"):
        atomic.write_text(tmp_path / "file", "lost")
    assert (tmp_path / "file").read_text() == "kept"


def test_on_a_file_system_without_locks_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(OSError, match=r"no locks .*: use a folder"), atomic.lock(tmp_path / "keys"):
        pass


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a full device")
def test_an_array_on_a_full_disk_is_not_written_in_silence(tmp_path: Path):
    with pytest.raises(OSError, match="No space left"):
        atomic.write_array(FULL, np.zeros(5000))
    ours = tmp_path / "ours.npy"
    atomic.write_array(ours, np.broadcast_to(np.uint8(0), (30, 4)))
    np.save(tmp_path / "theirs.npy", np.zeros((30, 4), np.uint8))
    assert ours.read_bytes() == (tmp_path / "theirs.npy").read_bytes()
