"""Files that the command line writes, and those that it must refuse."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gpumem.io import bundled_path

FILES = {"plan.json", "trace.json.gz", "timeline.json"}
PICTURES = {"profile.png", "layout.png", "timeline.png"}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def leftovers(folder: Path) -> list[str]:
    """Names of temporary files."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def full_disk(where: Path, monkeypatch: pytest.MonkeyPatch, existed: bool) -> Path:
    """Return a folder on a disk that fills up after the plan and the trace; an old plan is in it if it `existed`."""

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpumem.io.chrome.write", full)
    folder = where / "out"
    if existed:
        folder.mkdir()
        (folder / "plan.json").write_text("old")
    return folder


BARE = b"id,lower,upper,size\nx,0,2,4\ny,1,3,5\n"


def bad_file(folder: Path, kind: str) -> Path:
    """Make a file that is no trace."""
    good = bundled_path("mlp3").read_bytes()
    document = json.loads(gzip.decompress(good))
    path = folder / f"{kind}.json.gz"
    if kind == "missing":
        return path
    if kind == "directory":
        path.mkdir()
        return path
    changes = {
        "types": lambda: document["buffers"][3].update(bytes="many"),
        "negative": lambda: document["buffers"][3].update(bytes=-1),
        "overflow": lambda: document["buffers"][3].update(bytes=2**62),
        "beyond64": lambda: document["buffers"][3].update(bytes=2**64),
        "float": lambda: document["buffers"][3].update(bytes=1.5),
        "nan": lambda: document["buffers"][3].update(bytes=float("nan")),
        "lifetime": lambda: document["buffers"][40].update(free=10**6),
        "reversed": lambda: document["buffers"][40].update(alloc=79, free=50),
        "unknown": lambda: document["ops"][50]["reads"].append(10**6),
        "duplicate": lambda: document["buffers"][3].update(id=2),
        "early": lambda: document["ops"][50]["reads"].append(57),
        "nobuffers": lambda: document.update(buffers=[]),
        "noops": lambda: document.update(ops=[]),
        "noiterations": lambda: document["meta"].update(iterations=[]),
        "iterations": lambda: document["meta"].update(iterations=[[0, 1000]]),
        "missingkey": lambda: document["ops"][5].pop("reads"),
        "format": lambda: document["meta"].update(format="tensorflow\n\ngraph"),
    }
    raw = {
        "truncated": good[: len(good) // 2],
        "garbage": b"\x00\xff\xfe garbage",
        "empty": b"",
        "text": b"This is\nnot a trace\n",
        "deep": b"[" * 100_000,
        "json": b"{}",
        "csv": BARE.replace(b"0,2", b"2,0"),
        "longline": b"x" * 200_000,
    }
    if kind in changes:
        changes[kind]()
        path.write_text(json.dumps(document))
    else:
        path.write_bytes(raw[kind])
    return path


KINDS = ["missing", "directory", "types", "negative", "overflow", "beyond64", "float", "nan", "lifetime", "reversed"]
KINDS += ["unknown", "duplicate", "early", "nobuffers", "noops", "noiterations", "iterations", "missingkey", "format"]
KINDS += ["truncated", "garbage", "empty", "text", "deep", "json", "csv", "longline"]
BAD_AMOUNTS = ["0", "0%", "0.4", "-1", "-5%", "nan", "inf", "1e9", "", "half", "10XB", "5 5", "70%%", "1,5GiB", "0x10"]
BAD_AMOUNTS += [str(2**62), "5000000000TiB", "9" * 5000, "٣MiB"]
