"""Reading a file of any format, which its content tells: what is no trace, whatever its bytes, is one clear line."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gpumem.io import BUNDLED, bundled, bundled_path, load, read
from gpumem.io.tracefile import FORMAT
from tests.io.documents import (
    Json,
    assert_refused,
    edited,
    load_document,
    placed_document,
    recorded_document,
)


def test_gzip_is_judged_by_content_not_by_name(tmp_path: Path) -> None:
    raw = bundled_path("mlp3").read_bytes()
    (tmp_path / "packed.json").write_bytes(raw)
    (tmp_path / "plain.json.gz").write_bytes(gzip.decompress(raw))
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + gzip.decompress(raw))
    for path in tmp_path.iterdir():
        assert read(path).peak_live_bytes == bundled("mlp3").peak_live_bytes


def test_a_bundled_trace_is_called_by_a_short_name() -> None:
    assert {name: bundled(name).n for name in BUNDLED} == {"vgg16": 315, "resnet18": 349, "mlp3": 40}
    assert bundled().name == "vgg16_cifar_b100"
    with pytest.raises(ValueError, match=r"bundled trace: 'vgg' is unknown; there are vgg16, resnet18, mlp3"):
        bundled("vgg")


# --- bad input -------------------------------------------------------------------------------------------


def test_the_documents_that_are_broken_below_are_valid() -> None:
    assert load_document(recorded_document()).trace.n == 3
    assert load_document(placed_document()).trace.n == 4


def test_empty_traces_are_refused() -> None:
    document = edited(edited(recorded_document(), "buffers", []), "ops", [])
    assert_refused(document, r"iteration \[3, 6\): the recording has ops \[0, 0\)")
    document = edited(edited(placed_document(), "buffers", []), "ops", [])
    assert_refused(document, r"buffers: empty, nothing to plan")
    assert_refused(edited(document, "meta.n_ops", 0), r"trace 'p': empty, an iteration has at least one step \(n = 0\)")
    document = recorded_document() | {"buffers": []}
    for op in document["ops"]:
        op |= {"reads": [], "writes": [], "inplace": []}
    assert_refused(document, r"buffers: empty, nothing to plan")


def recording_with(text: str) -> str:
    """The recording with the raw token `text` for the bytes of buffer 1."""
    return json.dumps(edited(recorded_document(), "buffers.1.bytes", "HERE")).replace('"HERE"', text)


PACKED = gzip.compress(json.dumps(recorded_document()).encode(), mtime=0)

BAD_BYTES: dict[str, tuple[bytes | str, str]] = {
    "empty": (b"", r"the file is empty"),
    "blank": (b" \n\t\n", r"the file is empty"),
    "byte order mark alone": (b"\xef\xbb\xbf", r"the file is empty"),
    "empty gzip": (gzip.compress(b""), r"the file is empty"),
    "gzip cut in the header": (PACKED[:5], r"damaged or truncated gzip"),
    "gzip cut in the middle": (PACKED[: len(PACKED) // 2], r"damaged or truncated gzip \(Compressed file ended"),
    "gzip cut in the checksum": (PACKED[:-3], r"damaged or truncated gzip"),
    "gzip of nothing but its magic": (b"\x1f\x8b", r"damaged or truncated gzip"),
    "gzip with garbage behind": (PACKED + b"garbage", r"damaged or truncated gzip \(Not a gzipped file"),
    "gzip with a flipped byte": (PACKED[:40] + bytes([PACKED[40] ^ 255]) + PACKED[41:], r"damaged or truncated gzip"),
    "gzip in gzip": (gzip.compress(PACKED), r"neither JSON nor CSV text"),
    "garbage": (b"\xff\xfe\x00\x80", r"neither JSON nor CSV text"),
    "utf-16": (json.dumps(recorded_document()).encode("utf-16"), r"neither JSON nor CSV text"),
    "zeros": (b"\0" * 100, r"line 1: no column 'id' in '\\x00"),
    "a picture": (b"\x89PNG\r\n\x1a\n", r"neither JSON nor CSV text"),
    "prose": ("hello", r"line 1: no column 'id' in 'hello'"),
    "a very long line": ("x" * 10**6, r"not a CSV \(field larger than field limit \(131072\)\)"),
    "an open quote": ('"' + "x\n" * 10**5, r"not a CSV \(field larger than field limit \(131072\)\)"),
    "json null": ("null", r"line 1: no column 'id' in 'null'"),
    "json list": ("[]", r"file: expected `object`, got `array` \(found \[\]\)"),
    "json object": ("{}", r"file: object missing required field `meta` \(found \{\}\)"),
    "json cut": (json.dumps(recorded_document())[:200], r"file: Input data was truncated"),
    "json twice": (json.dumps(recorded_document()) * 2, r"file: JSON is malformed: trailing characters \(byte \d+\)"),
    "json with a comment": ("{// no\n}", r"file: JSON is malformed: .* \(byte 1\) near '\{// no\\n\}'"),
    "not a number": (recording_with("NaN"), r"file: JSON is malformed: .* \(byte \d+\) near .*NaN"),
    "infinity": (recording_with("-Infinity"), r"file: JSON is malformed: .* \(byte \d+\) near .*Infinity"),
    "1e400": (recording_with("1e400"), r"buffers\[1\].bytes: number out of range \(found Infinity\)"),
    "1e3": (recording_with("1e3"), r"buffers\[1\].bytes: expected `int`, got `float` \(found 1000.0\)|op"),
    "-0.0": (recording_with("-0.5"), r"buffers\[1\].bytes: expected `int`, got `float` \(found -0.5\)"),
    "leading zero": (recording_with("012"), r"file: JSON is malformed: .* \(byte \d+\) near .*012"),
    "hexadecimal": (recording_with("0x10"), r"file: JSON is malformed: .* \(byte \d+\) near .*0x10"),
    "10,000 digits": (recording_with("1" * 10_000), r"buffers\[1\].bytes: "),
    "invalid utf-8": (
        json.dumps(recorded_document()).encode().replace(b'"work"', b'"\xff"'),
        r"ops: 'utf-8' codec can't decode byte 0xff",
    ),
    "lone surrogate": (
        json.dumps(recorded_document()).replace('"work"', '"\\ud800"'),
        r"file: JSON is malformed: unexpected end of hex escape",
    ),
    "deep list": ("[" * 100_000, r"file: "),
    "deep buffers": ('{"meta":{},"ops":[],"buffers":' + "[" * 100_000, r"file: maximum recursion depth"),
    "deep meta": ('{"meta":' + '{"a":' * 100_000, r"file: maximum recursion depth"),
    "deep and closed": ('{"meta":' + "[" * 90_000 + "]" * 90_000 + "}", r"file: maximum recursion depth"),
}


@pytest.mark.parametrize(("data", "message"), BAD_BYTES.values(), ids=BAD_BYTES.keys())
def test_a_file_that_is_no_trace_is_refused(data: bytes | str, message: str) -> None:
    assert_refused(data, message)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{tmp_path}: Is a directory$"):
        load(tmp_path)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/none.json: No such file or directory$"):
        load(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"^x{300}: File name too long$"):
        load("x" * 300)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"loop: (Too many levels of symbolic links|.*)$"):
        load(tmp_path / "loop")


# --- fuzz ------------------------------------------------------------------------------------------------

BYTES = bundled_path("mlp3").read_bytes()
PLAIN = gzip.decompress(BYTES)
INSTANCE = b"id,lower,upper,size,offset\n" + b"".join(b"b%d,%d,%d,%d,%d\n" % (i, i, i + 3, 10 + i, i) for i in range(9))


def survives(data: bytes) -> None:
    """Loads, or says in one line why not; what loads can be worked with."""
    try:
        found = load_document(data)
    except ValueError as error:
        assert "\n" not in str(error) and "in.json" in str(error)
        return
    assert 0 <= found.trace.peak_live_bytes < 2**62
    assert len(found.trace.accesses().op) == len(found.trace.buffers)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes flipped, something cut out or doubled, an end lost."""
    result = bytearray(data)
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=4)):
        result[at] = draw(st.integers(0, 255))
    begin, length = draw(st.integers(0, len(data))), draw(st.sampled_from([0, 0, 1, 2, 40]))
    if draw(st.booleans()):
        del result[begin : begin + length]
    else:
        result[begin:begin] = result[begin : begin + length]
    return bytes(result[: draw(st.one_of(st.just(len(result)), st.integers(0, len(result))))])


@given(damaged(BYTES))
def test_a_damaged_gzip_never_gets_through(data: bytes) -> None:
    survives(data)


@given(damaged(PLAIN))
def test_damaged_json_never_gets_through(data: bytes) -> None:
    survives(data)


@given(damaged(INSTANCE))
def test_a_damaged_csv_never_gets_through(data: bytes) -> None:
    survives(data)


@given(st.binary(max_size=60), st.sampled_from([b"", b"{", b"[", b"id,lower,upper,size\n", b"\x1f\x8b\x08"]))
def test_random_bytes_never_get_through(data: bytes, head: bytes) -> None:
    survives(head + data)


WEIRD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**53 - 1, 2**53, 2**61, 2**62 - 1, 2**62, 2**63, 2**64, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["host", "copy_in", "copy_out", "sync", FORMAT]),
    st.lists(st.integers(-1, 6), max_size=3),
    st.just({}),
)


def leaves(value: Json) -> Iterator[tuple[Json, Json]]:
    """Every container and key of a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from leaves(value[key])


@st.composite
def mutated(draw: st.DrawFn, make: Callable[[], Json]) -> str:
    """One to three values anywhere replaced, removed or, in a list, doubled."""
    document = make()
    for _ in range(draw(st.integers(1, 3))):
        places = list(leaves(document))
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        action = draw(st.sampled_from(["replace", "replace", "replace", "remove", "double"]))
        if action == "replace":
            container[key] = draw(WEIRD)
        elif action == "remove":
            del container[key]
        elif isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
    return json.dumps(document)


@given(mutated(recorded_document))
def test_a_mutated_recording_loads_or_is_refused(text: str) -> None:
    survives(text.encode())


@given(mutated(placed_document))
def test_a_mutated_trace_file_loads_or_is_refused(text: str) -> None:
    survives(text.encode())


@given(mutated(lambda: json.loads(PLAIN)))
def test_a_mutated_real_recording_loads_or_is_refused(text: str) -> None:
    survives(text.encode())
