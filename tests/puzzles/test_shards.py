"""Shards of a build: merged bytes are those of one machine; wrong sets of shards are named."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from service_tools import command, wait_for

from hrm_puzzles import cli
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split
from hrm_puzzles.data.shards import Shard, merge

HEADER = "source,question,answer,rating"
ROW = "made,1.3.34122143432.,1234341221434321,0"
COPY = ROW.translate(str.maketrans("12", "21"))
OTHERS = ["made,.234341221434321,1234341221434321,7", "made,1234.41221434321,1234341221434321,2"]


def hrm_data(*arguments: object, status: int = 0) -> None:
    """Run `hrm-data` in this process; it must end with this status."""
    ended = cli.main(list(map(str, arguments)), standalone_mode=False)
    assert (ended or 0) == status


def recipe_of(kind: str, folder: Path) -> list[object]:
    if kind == "generated":
        return ["sudoku-4x4", "--train", 300, "--test", 130]
    train = folder / "rows.csv"
    test = folder / "held-out.csv"
    train.write_text("\n".join([HEADER, COPY, *OTHERS]))
    test.write_text(f"{HEADER}\n{ROW}\n")
    csv = ["--csv-sample", 2, "--csv-train", train, "--csv-test", test]
    return ["sudoku-4x4", "--train", 70, *csv]


def build(path: Path, recipe: list[object], *options: object) -> None:
    hrm_data("build", *recipe, "--out", path, *options)


@pytest.mark.parametrize("of", [1, 3])
@pytest.mark.parametrize("kind", ["generated", "rows"])
def test_merged_shards_have_the_bytes_of_one_machine(kind: str, of: int, tmp_path: Path) -> None:
    recipe = recipe_of(kind, tmp_path)
    build(tmp_path / "whole", recipe)
    shards = tmp_path / "shards"
    for number in range(of, 0, -1):
        build(shards / str(number), recipe, "--shard", f"{number}/{of}")
    paths = sorted(shards.iterdir(), key=lambda path: path.stat().st_ctime_ns)
    assert len(paths) == of
    hrm_data("merge", *paths, "--out", tmp_path / "merged")
    assert fingerprint(tmp_path / "merged") == fingerprint(tmp_path / "whole")


@pytest.mark.process
def test_a_killed_shard_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe: list[object] = ["sudoku-6x6", "--train", 1000, "--test", 10]
    first = tmp_path / "1"
    line = command("data", "build", *recipe, "--out", first, "--shard", "1/2")
    process = subprocess.Popen(line, start_new_session=True)
    wait_for(lambda: len(list(tmp_path.glob(".1.chunks-*/train-*.npy"))) > 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not first.exists()
    build(first, recipe, "--shard", "1/2")
    assert "the same command continues it" in capsys.readouterr().err
    build(tmp_path / "2", recipe, "--shard", "2/2")
    build(tmp_path / "whole", recipe)
    hrm_data("merge", first, tmp_path / "2", "--out", tmp_path / "merged")
    assert fingerprint(tmp_path / "merged") == fingerprint(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "merged", "whole"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of a build, one of the same build with another seed, and a data set."""
    folder = tmp_path_factory.mktemp("shards")
    recipe: list[object] = ["sudoku-4x4", "--train", 9, "--test", 3]
    for number in (1, 2, 3):
        build(folder / f"s{number}", recipe, "--shard", f"{number}/3")
    build(folder / "half", recipe, "--shard", "1/2")
    build(folder / "seed", recipe, "--shard", "3/3", "--seed", 4)
    build(folder / "whole", recipe)
    shutil.copytree(folder / "s2", folder / "copy")
    shutil.copytree(folder / "s2", folder / "damaged")
    (folder / "damaged" / "part" / "made_test.npy").write_bytes(b"torn")
    return folder


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["s1"], r"these shards are missing: 2/3, 3/3; build them"),
        (["s1", "copy", "s2", "s3"], r"copy and .*s2 are both shard 2/3"),
        (["s1", "s2", "seed"], r"seed has seed 4, but .*s1 has 0; build shard 3/3 again"),
        (["s1", "half"], r"s1 is shard 1/3, but|half is shard 1/2, but"),
        (["s1", "damaged", "s3"], r"damaged differ from those of its build; build shard 2/3"),
        (["s1", "whole", "s3"], r"whole is not a finished shard .*shard.json"),
    ],
)
def test_unfit_shards_are_rejected_by_name(
    names: list[str], problem: str, shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=problem):
        merge([shards / name for name in names], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_shard_alone_is_no_data_set(shards: Path) -> None:
    with pytest.raises(DatasetError, match="is a shard of a data set; join all shards"):
        open_split(shards / "s1", "train")


def test_shards_divide_a_build_evenly() -> None:
    for count in (0, 1, 5, 64, 1001):
        for of in (1, 2, 7, 100):
            places: list[int] = []
            sizes: set[int] = set()
            for number in range(1, of + 1):
                part = range(count)[Shard(number=number, of=of).slice_of(count)]
                places += part
                sizes.add(len(part))
            assert places == list(range(count))
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1/3/5", "a/b", "1/" + "9" * 99])
def test_nonsense_is_not_a_shard(text: str) -> None:
    with pytest.raises(DatasetError, match="is not a shard; write I/N"):
        Shard.parse(text)
