"""The text of PTX: statements, operands, variables."""

import re

BITS = {kind + str(bits): bits for kind in "usb" for bits in (8, 16, 32, 64)} | {"f32": 32, "f64": 64, "pred": 1}
FLOATS = {"f32", "f64"}


class Refused(ValueError):
    """PTX that is not translated: `line N: instruction: why`."""


def statements(text: str):
    """Yield (line, statement): `{`, `}`, `label:`, or what ends in `;`. The head of a function comes up to its `{`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", lambda it: "\n" * it[0].count("\n"), text, flags=re.S)
    text = re.sub(r"^[ \t]*\.(version|target|address_size|file|loc)\b[^\n]*", "", text, flags=re.M)
    token = re.compile(r"\s*([{}]|[\w$%]+\s*:(?!:)|[^;{]*\.(?:entry|func)\b[^{;]*|[^;]*;)")
    at = line = 0
    while found := token.match(text, at):
        line += text.count("\n", at, found.start(1))
        yield line + 1, " ".join(found[1].rstrip(";").split())
        line += text.count("\n", found.start(1), found.end())
        at = found.end()
    if rest := text[at:].strip():
        line += text.count("\n", at) - rest.count("\n") - (len(text) - len(text.rstrip("\n")))
        raise Refused(f"line {line + 1}: {rest[:60]}: this does not end")


def split(text: str, by: str = ",") -> list[str]:
    """Split operands, but not within brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[{(") - (c in "]})")
        if c == by and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def variable(text: str) -> tuple[str, int, int]:
    """Name, bytes and alignment of `.align 4 .b8 name[16]`; an array of open size has -1 bytes."""
    found = re.search(r"\.([usbf]\d+)\s+(?:\.ptr\s+(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?)?([\w$]+)\s*(\[(\d*)\])?$", text)
    if not found or found[1] not in BITS:
        raise Refused(f"{text}: this variable is not known")
    item = BITS[found[1]] // 8
    size = item if found[3] is None else item * int(found[4]) if found[4] else -1
    align = re.match(r".*?\.align\s+(\d+)\s+\.[usbf]\d", text)
    return found[2], size, int(align[1]) if align else item


def packed(variables: list[tuple[str, int, int]]) -> tuple[dict[str, tuple[int, int]], int]:
    """Parameters one after another, each aligned: name -> (offset, bytes), and the end."""
    there, end = {}, 0
    for name, size, align in variables:
        start = -(-end // align) * align
        there[name], end = (start, size), start + size
    return there, end


FIRST, GAP = 1024, 256  # shared memory starts at an address that is not 0, and its arrays do not touch


def apart(variables: list[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Arrays in shared memory, with gaps between them; the one of open size comes last."""
    there, start = {}, FIRST
    for name, size, _ in sorted(variables, key=lambda it: it[1] < 0):
        there[name] = start, size
        start += -(-(size + GAP) // GAP) * GAP
    return there


def named(text: str) -> str:
    """The name in C of a register, label or array."""
    return "p_" + re.sub(r"\W", lambda it: "_S" if it[0] == "$" else "_", text)
