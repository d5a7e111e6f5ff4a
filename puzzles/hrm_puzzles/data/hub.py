"""Published data sets fetched from the Hugging Face hub: `hub:sapientinc/sudoku-extreme` and the like.

What is fetched are the files train.csv and test.csv of a data set, in the form `csv_rows` reads.
"""

from __future__ import annotations

from pathlib import Path

from hrm_puzzles.data.datasets import DatasetError

PREFIX = "hub:"
FILES = ("train.csv", "test.csv")
BY_HAND = "download train.csv and test.csv by hand and give them with --csv-train and --csv-test"


def fetched(source: str) -> tuple[Path, Path]:
    """The training and the test file of `hub:ORG/NAME`, downloaded once; every failure is one sentence."""
    name = source.removeprefix(PREFIX)
    if not source.startswith(PREFIX) or name.count("/") != 1:
        raise DatasetError(f"{source!r} is no source; write {PREFIX}ORG/NAME, as in {PREFIX}sapientinc/sudoku-extreme.")
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        remedy = f"install it with pip install 'hrm-edge[hub]', or {BY_HAND}"
        raise DatasetError(f"{source} needs the package huggingface_hub, which is missing; {remedy}.") from error
    try:
        train, test = (Path(str(hf_hub_download(name, file, repo_type="dataset"))) for file in FILES)
    except (OSError, ValueError) as error:  # the client's own errors are kinds of these
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        remedy = f"check the name and the network, or {BY_HAND}"
        raise DatasetError(f"{source} cannot be fetched ({reason}); {remedy}.") from error
    return train, test
