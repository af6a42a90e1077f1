"""PTX to C: what the fake driver runs a kernel as. `python ptx.py IN.ptx OUT.c`; `ptx.h` says what the C counts on.

A kernel becomes a function that runs one thread up to its next barrier, or to its end. What is not known is refused,
with the instruction and its line; nothing is left out in silence.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
SPECIAL = {
    f"%{name}.{axis}": f"t->{name}[{i}]" for name in ("tid", "ntid", "ctaid", "nctaid") for i, axis in enumerate("xyz")
}
COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
ROUND = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"}
LINE = re.compile(r"(?:@(?P<no>!?)(?P<guard>%\w+)\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<rest>.*)", re.S)
DECLARED = re.compile(
    r"\.(?P<space>shared|local|global|const)\s+(?:\.align\s+\d+\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?:\[(?P<n>\d*)\])?"
)


class Unknown(ValueError):
    """What the translator does not know."""


def ctype(kind: str) -> str:
    """The C type of a PTX type: `s32` -> `int32_t`."""
    if kind == "pred":
        return "bool"
    if kind in ("f32", "f64"):
        return {"f32": "float", "f64": "double"}[kind]
    if kind[0] in "sub" and kind[1:] in SIZES:
        return f"{'int' if kind[0] == 's' else 'uint'}{kind[1:]}_t"
    raise Unknown(f"the type .{kind}")


def size(kind: str) -> int:
    """Bytes of a value."""
    return SIZES[kind[1:]]


class Kernel:
    """One entry: its parameters, registers and arrays, and the C that its instructions become."""

    def __init__(self, name: str, parameters: list[tuple[str, str]], shared: dict[str, tuple[int, int]]) -> None:
        self.name, self.shared = name, dict(shared)
        self.offsets: dict[str, tuple[int, int]] = {}
        at = 0
        for kind, parameter in parameters:
            at = -(-at // size(kind)) * size(kind)
            self.offsets[parameter] = at, size(kind)
            at += size(kind)
        self.parameter_bytes = at
        self.local: dict[str, tuple[int, int]] = {}
        self.registers: dict[str, str] = {}
        self.vectors: list[tuple[str, str, int]] = []
        self.body: list[str] = []
        self.barriers = self.sites = 0
        self.line = 0

    # operands

    def kind_of(self, name: str) -> str:
        """The declared type of a register."""
        if name in self.registers:
            return self.registers[name]
        prefix = name.rstrip("0123456789")
        for start, kind, _ in self.vectors:
            if start == prefix:
                return kind
        raise Unknown(f"the register {name}")

    def read(self, operand: str, kind: str) -> str:
        """A C expression of type `kind` for an operand: its bits, cut or extended as its type has it."""
        if operand in SPECIAL:
            return f"({ctype(kind)})({SPECIAL[operand]})"
        if operand.startswith("%"):
            return convert(mangled(operand), self.kind_of(operand), kind)
        if found := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})", operand):
            return convert(f"u2f(0x{found[1]}u)", "f32", kind)
        if found := re.fullmatch(r"0[dD]([0-9A-Fa-f]{16})", operand):
            return convert(f"u2d(0x{found[1]}ull)", "f64", kind)
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", operand):
            value = int(operand.rstrip("U"), 0)
            if kind == "pred":
                return str(int(bool(value)))
            return f"(({ctype(kind)})0x{value % 2**64:x}ull)"
        for where, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
            if operand in (table := getattr(self, where)):
                return f"(({ctype(kind)})(0x{base:x}ull + {table[operand][0]}))"
        raise Unknown(f"the operand {operand}")

    def write(self, operand: str, value: str, kind: str) -> str:
        """The C that sets a register to a value of type `kind`."""
        if operand == "_":
            return f"(void)({value});"
        return f"{mangled(operand)} = {convert(value, kind, self.kind_of(operand))};"

    def address(self, operand: str) -> str:
        """What `[...]` means: a register, an array or a number, and an offset."""
        inner = operand.strip("[]").replace(" ", "")
        base, sign, offset = re.fullmatch(r"(.+?)(?:(\+-?)(\d+))?", inner).groups()  # type: ignore[union-attr]
        plus = f" {'-' if sign == '+-' else '+'} {offset}ull" if offset else ""
        return f"({self.read(base, 'u64')}{plus})"


SHARED_BASE, LOCAL_BASE = 1 << 40, 1 << 41  # where the arrays of a block, and of a thread, seem to be


def mangled(register: str) -> str:
    """The name in C of a register."""
    return "r_" + register.lstrip("%").replace("$", "_")


def convert(value: str, have: str, want: str) -> str:
    """Bits of one type as those of another; integers are cut or extended as the type they have says."""
    floats = {"f32": ("f2u", "u2f", "b32"), "f64": ("d2u", "u2d", "b64")}
    if have == want or (have[0] == "f" and want[0] == "f" and have == want):
        return value
    if have in floats and want in floats:
        raise Unknown(f"a .{have} where a .{want} belongs")
    if have in floats:
        return f"(({ctype(want)}){floats[have][0]}({value}))"
    if want in floats:
        return f"{floats[want][1]}(({ctype(floats[want][2])})({value}))"
    return f"(({ctype(want)})({value}))"


Translate = Callable[[Kernel, list[str], list[str]], str]
OPS: dict[str, Translate] = {}


def op(*names: str) -> Callable[[Translate], Translate]:
    """Say which opcodes a function translates: it has the opcode's parts and the operands."""

    def add(function: Translate) -> Translate:
        OPS.update(dict.fromkeys(names, function))
        return function

    return add


def arithmetic(name: str, form: str, parts: tuple[str, ...] = (), unsigned: bool = False) -> None:
    """A plain opcode: `form` has the operands as {0}, {1}, ..., cast to the opcode's type, or to the unsigned one."""

    def translate(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
        kind = modifiers[-1]
        known(name, modifiers[:-1], {*parts})
        floating = kind[0] == "f"
        inner = "u" + kind[1:] if unsigned and not floating and kind != "pred" else kind
        value = form.format(*[k.read(o, inner) for o in operands[1:]], t=suffix(kind), c=ctype(kind))
        if kind != "pred" and not floating:
            value = f"({ctype(inner)})({value})"
        return k.write(operands[0], value, inner)

    OPS[name] = translate


def suffix(kind: str) -> str:
    return kind if kind[0] in "fsu" else "u" + kind[1:]


def known(name: str, modifiers: list[str], allowed: set[str]) -> None:
    for modifier in modifiers:
        if modifier not in allowed:
            raise Unknown(f"{name} with .{modifier}")


for _name, _form in {"add": "{0} + {1}", "sub": "{0} - {1}"}.items():
    arithmetic(_name, _form, ("rn", "wrap"), unsigned=True)
for _name, _form in {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}.items():
    arithmetic(_name, _form)
arithmetic("neg", "-{0}", unsigned=True)
arithmetic("abs", "abs_{t}({0})")
arithmetic("min", "min_{t}({0}, {1})")
arithmetic("max", "max_{t}({0}, {1})")
arithmetic("rem", "rem_{t}({0}, {1})")
arithmetic("div", "div_{t}({0}, {1})", ("rn", "approx", "full", "ftz"))
arithmetic("sqrt", "sqrt_{t}({0})", ("rn", "approx", "ftz"))
arithmetic("rsqrt", "1 / sqrt_{t}({0})", ("approx", "ftz"))
arithmetic("rcp", "1 / {0}", ("rn", "approx", "ftz"))
arithmetic("ex2", "exp2f({0})", ("approx", "ftz"))
arithmetic("lg2", "log2f({0})", ("approx", "ftz"))
arithmetic("copysign", "copysign_{t}({1}, {0})")
arithmetic("tanh", "tanhf({0})", ("approx",))
arithmetic("sin", "sinf({0})", ("approx", "ftz"))
arithmetic("cos", "cosf({0})", ("approx", "ftz"))


@op("not")
def _not(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    (kind,) = modifiers
    return k.write(operands[0], f"{'!' if kind == 'pred' else '~'}{k.read(operands[1], kind)}", kind)


def _shifted(name: str) -> Translate:
    def translate(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
        (kind,) = modifiers
        value, count = k.read(operands[1], kind), k.read(operands[2], "u32")
        return k.write(operands[0], f"{name}_{suffix(kind)}({value}, {count})", kind)

    return translate


OPS["shl"], OPS["shr"] = _shifted("shl"), _shifted("shr")


@op("mul", "mad")
def _mul(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    *how, kind = modifiers
    mad = len(operands) == 4
    if kind[0] == "f":
        known("mul", how, {"rn", "ftz"})
        if mad:
            return _fma(k, modifiers, operands)
        return k.write(operands[0], f"{k.read(operands[1], kind)} * {k.read(operands[2], kind)}", kind)
    known("mul", how, {"lo", "hi", "wide"})
    a, b = (k.read(o, kind) for o in operands[1:3])
    if how == ["wide"]:
        wide = kind[0] + str(2 * int(kind[1:]))
        value = f"({ctype('u' + wide[1:])})(({ctype(wide)}){a} * ({ctype(wide)}){b})"
    elif how == ["hi"]:
        wide, value = kind, f"hi_{suffix(kind)}({a}, {b})"
    else:
        wide, u = kind, ctype("u" + kind[1:])
        value = f"({u})(({u}){a} * ({u}){b})"
    if mad:
        value = f"{value} + ({ctype('u' + wide[1:])}){k.read(operands[3], wide)}"
    return k.write(operands[0], f"({ctype('u' + wide[1:])})({value})", "u" + wide[1:])


@op("fma")
def _fma(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    kind = modifiers[-1]
    known("fma", modifiers[:-1], {"rn", "rm", "rz", "rp", "ftz"})
    how = next((m for m in modifiers if m in ROUND), "rn")
    call = ("fmaf" if kind == "f32" else "fma") if how == "rn" else f"fma_{how}_{kind}"
    return k.write(operands[0], f"{call}({', '.join(k.read(o, kind) for o in operands[1:])})", kind)


@op("setp")
def _setp(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    test, *how, kind = modifiers
    combine = [m for m in how if m in ("and", "or", "xor")]
    known("setp", [m for m in how if m not in combine], {"ftz"})
    a, b = (k.read(o, kind) for o in operands[1:3])
    if kind[0] == "f" and test in ("num", "nan"):
        value = f"({'!' if test == 'num' else ''}({a} != {a} || {b} != {b}))"
    elif kind[0] == "f" and len(test) == 3:  # unordered: true for NaN
        value = (
            f"(!({a} {OPPOSITE[test[:2]]} {b}))"
            if test[:2] not in ("eq",)
            else f"({a} == {b} || {a} != {a} || {b} != {b})"
        )
    elif kind[0] == "f" and test == "ne":  # ordered
        value = f"({a} < {b} || {a} > {b})"
    else:
        value = f"({a} {COMPARE[test]} {b})"
    if combine:
        value = f"({value} {dict(zip(('and', 'or', 'xor'), '&|^'))[combine[0]]} {k.read(operands[3], 'pred')})"
    first, _, second = operands[0].partition("|")
    return k.write(first, value, "pred") + (k.write(second, f"!{value}", "pred") if second else "")


OPPOSITE = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<", "ne": "=="}


@op("selp")
def _selp(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    (kind,) = modifiers
    target, a, b, p = operands
    return k.write(target, f"({k.read(p, 'pred')} ? {k.read(a, kind)} : {k.read(b, kind)})", kind)


@op("mov")
def _mov(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    (kind,) = modifiers
    target, source = operands
    half = "u" + str(int(kind[1:]) // 2) if kind[1:].isdigit() else ""
    if source.startswith("{"):
        low, high = (k.read(o.strip(), half) for o in source.strip("{}").split(","))
        return k.write(target, f"(({ctype('u' + kind[1:])}){high} << {half[1:]} | {low})", "u" + kind[1:])
    if target.startswith("{"):
        low, high = (o.strip() for o in target.strip("{}").split(","))
        value = k.read(source, "u" + kind[1:])
        return k.write(low, f"({ctype(half)}){value}", half) + k.write(
            high, f"({ctype(half)})({value} >> {half[1:]})", half
        )
    return k.write(target, k.read(source, kind), kind)


@op("cvta")
def _cvta(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    return k.write(operands[0], k.read(operands[1], "u64"), "u64")


@op("cvt")
def _cvt(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    *how, to, of = modifiers
    known("cvt", how, {*ROUND, "ftz", "sat"})
    target, source = operands
    rounding = next((m for m in how if m in ROUND), "")
    value = k.read(source, of)
    if of[0] == "f" and to[0] == "f":
        if rounding.endswith("i"):
            value = f"round_{rounding[:2]}({value})"
        value = f"({ctype(to)})({value})"
        if "sat" in how:
            value = f"saturate({value})"
    elif of[0] == "f":
        value = f"f_to_{suffix(to)}(round_{rounding[:2] or 'rz'}({value}))"
    elif to[0] == "f":
        if rounding not in ("rn", ""):
            raise Unknown(f"cvt with .{rounding} of an integer")
        value = f"({ctype(to)})({value})"
    elif "sat" in how:
        raise Unknown("cvt.sat of integers")
    return k.write(target, f"({ctype(to)})({value})" if to[0] != "f" else value, to)


# memory

PATH = {"global": "GLOBAL", "shared": "SHARED", "local": "LOCAL", "": "GENERIC"}


def _space(modifiers: list[str]) -> tuple[str, int, str]:
    """The space, the number of elements and the type of an access."""
    space = next((m.split("::")[0] for m in modifiers if m.split("::")[0] in ("global", "shared", "local")), "")
    count = next((int(m[1]) for m in modifiers if m in ("v2", "v4")), 1)
    allowed = {
        "v2",
        "v4",
        "nc",
        "volatile",
        "relaxed",
        "acquire",
        "release",
        "weak",
        "sys",
        "gpu",
        "cta",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "wb",
        "wt",
    }
    known("ld or st", [m for m in modifiers[:-1] if m.split("::")[0] != space], allowed)
    return space, count, modifiers[-1]


@op("ld", "ldu")
def _ld(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    if modifiers[0] == "param":
        name, _, more = operands[1].strip("[]").partition("+")
        at = k.offsets[name][0] + int(more or 0)
        return k.write(operands[0], f"(*(const {ctype(modifiers[-1])} *)(t->parameters + {at}))", modifiers[-1])
    space, count, kind = _space(modifiers)
    targets = [o.strip() for o in operands[0].strip("{}").split(",")]
    k.sites += 1
    reached = f"REACH({PATH[space]}, {k.sites - 1}, {k.address(operands[1])}, {size(kind) * count}, {k.line});"
    loads = "".join(k.write(o, f"((const {ctype(kind)} *)at)[{i}]", kind) for i, o in enumerate(targets))
    return f"{{ {reached} {loads} }}"


@op("st")
def _st(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    space, count, kind = _space(modifiers)
    sources = [o.strip() for o in operands[1].strip("{}").split(",")]
    k.sites += 1
    reached = f"REACH({PATH[space]}, {k.sites - 1}, {k.address(operands[0])}, {size(kind) * count}, {k.line});"
    stores = "".join(f"(({ctype(kind)} *)at)[{i}] = {k.read(o, kind)};" for i, o in enumerate(sources))
    return f"{{ {reached} {stores} }}"


@op("atom", "red")
def _atom(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    *how, kind = modifiers
    does = [m for m in how if m in ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc")]
    space = next((m for m in how if m in ("global", "shared")), "")
    known("atom", [m for m in how if m not in does and m != space], {"relaxed", "gpu", "cta", "sys"})
    if does[0] == "inc" or (kind[0] == "f" and does[0] not in ("add", "exch")):
        raise Unknown(f"atom.{does[0]}.{kind}")
    target, address, *values = operands if len(operands) > 2 else ["_", *operands]
    a = [k.read(v, kind) for v in values]
    new = {
        "add": f"old + {a[0]}", "exch": a[0], "and": f"old & {a[0]}", "or": f"old | {a[0]}", "xor": f"old ^ {a[0]}",
        "min": f"{a[0]} < old ? {a[0]} : old", "max": f"{a[0]} > old ? {a[0]} : old",
        "cas": f"old == {a[0]} ? {a[-1]} : old",
    }[does[0]]  # fmt: skip
    k.sites += 1
    c, reached = ctype(kind), f"REACH({PATH[space]}, {k.sites - 1}, {k.address(address)}, {size(kind)}, {k.line});"
    return f"{{ {reached} {c} old = *({c} *)at; *({c} *)at = {new}; {k.write(target, 'old', kind)} }}"


# control


@op("bra")
def _bra(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    known("bra", modifiers, {"uni"})
    return f"goto {label(operands[0])};"


@op("ret", "exit")
def _ret(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    return "return ENDED;"


@op("bar", "barrier")
def _bar(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    known("bar", modifiers, {"sync", "aligned", "cta"})
    if operands != ["0"]:
        raise Unknown(f"the barrier {', '.join(operands)}")
    k.barriers += 1
    return f"EACH(SAVE) t->resume = {k.barriers}; t->line = {k.line}; return {k.barriers}; resume_{k.barriers}:;"


@op("membar", "fence", "pragma")
def _nothing(k: Kernel, modifiers: list[str], operands: list[str]) -> str:
    return ";"


def label(name: str) -> str:
    return "L_" + re.sub(r"\W", "_", name)


def split(text: str) -> list[str]:
    """Operands: commas outside of brackets and braces."""
    found, depth = [""], 0
    for c in text:
        depth += (c in "[{(") - (c in "]})")
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [o.strip() for o in found if o.strip()]


def statements(text: str, first: int) -> Iterator[tuple[int, str]]:
    """The statements of a body, each with its line: up to a semicolon, a colon after a label, a brace of its own."""
    statement, begun = "", first
    for number, line in enumerate(text.split("\n"), first):
        for piece in re.findall(r"[^;]*;|[^;]+$", line.split("//")[0]):
            if not statement.strip():
                begun = number
            statement += piece
            bare = statement.strip()
            if bare.endswith(";") or re.fullmatch(r"[\w$]+:", bare) or bare in ("{", "}"):
                yield begun, bare.rstrip(";").strip()
                statement = ""
            else:
                statement += " "
    if statement.strip():
        raise Unknown(f"line {begun}: {statement.strip()}")


def array(found: re.Match[str]) -> tuple[str, int]:
    """The name and the bytes of an array."""
    return found["name"], size(found["type"]) * int(found["n"] or 1)


def place(table: dict[str, tuple[int, int]], name: str, length: int) -> None:
    at = -(-sum(end for _, end in [*table.values()][-1:]) // 16) * 16
    if table:
        start, bytes_ = [*table.values()][-1]
        at = -(-(start + bytes_) // 16) * 16
    table[name] = at, length


def translate(k: Kernel, text: str, first: int) -> None:
    """Append the C of a body."""
    for k.line, statement in statements(text, first):
        if statement in ("{", "}"):
            k.body.append(statement)
        elif statement.endswith(":"):
            k.body.append(f"{label(statement[:-1])}:;")
        elif found := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.+)", statement, re.S):
            for name in split(found[2]):
                if many := re.fullmatch(r"(%\w*?)<(\d+)>", name):
                    k.vectors.append((many[1], found[1], int(many[2])))
                else:
                    k.registers[name] = found[1]
        elif found := DECLARED.fullmatch(statement):
            place(k.shared if found["space"] == "shared" else k.local, *array(found))
        elif statement.startswith((".loc", ".pragma")):
            continue
        else:
            k.body.append(instruction(k, statement))


def instruction(k: Kernel, statement: str) -> str:
    """One instruction as C."""
    found = LINE.fullmatch(statement)
    if found is None:
        raise Unknown(f"line {k.line}: {statement}")
    name, *modifiers = found["op"].split(".")
    try:
        if name not in OPS:
            raise Unknown(f"the instruction {found['op']}")
        code = OPS[name](k, modifiers, split(found["rest"]))
    except (Unknown, KeyError, ValueError, TypeError, IndexError) as error:
        raise Unknown(f"line {k.line}: {statement}: {error}") from error
    if found["guard"]:
        return f"if ({found['no']}{k.read(found['guard'], 'pred')}) {{ {code} }}"
    return code


def function(k: Kernel) -> str:
    """The kernel as a C function, and what the driver has to know of it."""
    registers = [(mangled(name), ctype(kind)) for name, kind in k.registers.items()]
    registers += [(f"{mangled(p)}{i}", ctype(kind)) for p, kind, n in k.vectors for i in range(1, n)]
    fields = " ".join(f"{c} {name};" for name, c in registers)
    each = " ".join(f"WHAT({name})" for name, _ in registers) if k.barriers else ""
    ends = {
        name: max((a + b for a, b in table.values()), default=0) for name, table in (("s", k.shared), ("l", k.local))
    }
    resumes = "".join(f"case {i}: goto resume_{i};" for i in range(1, k.barriers + 1))
    rows = ", ".join(f"{{{at}, {n}}}" for at, n in k.offsets.values())
    body = "\n    ".join(k.body)
    return f"""
struct regs_{k.name} {{ {fields if k.barriers else ""} char none; }};
static struct span spans_{k.name}[{k.sites + 1}];
static int run_{k.name}(struct thread *t, void *memory) {{
    struct regs_{k.name} *saved = memory;
    {fields}
    struct span *spans = spans_{k.name};
    enum {{ SHARED_BYTES = {ends["s"]}, LOCAL_BYTES = {ends["l"]} }};
    (void)saved, (void)spans;
#undef EACH
#define EACH(WHAT) {each}
    if (t->resume) {{ EACH(LOAD) }}
    switch (t->resume) {{ {resumes} }}
    {body}
    return ENDED;
}}
static const struct parameter parameters_{k.name}[] = {{ {rows or "{0, 0}"} }};
const struct code code_{k.name} = {{
    "{k.name}", run_{k.name}, sizeof(struct regs_{k.name}), {ends["s"]}, {ends["l"]},
    {k.parameter_bytes}, {len(k.offsets)}, parameters_{k.name}, spans_{k.name}, sizeof spans_{k.name}, {k.barriers},
}};
"""


ENTRY = re.compile(r"\.(?:visible|weak)\s+\.entry\s+([\w$]+)\s*\((.*?)\)\s*((?:\.\w+\s+[\d, ]+\s*)*)\{\n", re.S)


def module(text: str) -> str:
    """All entries of a PTX module as C."""
    shared: dict[str, tuple[int, int]] = {}
    outside = ENTRY.split(text)
    for found in DECLARED.finditer(re.sub(r"\n\{.*?\n\}", "", text, flags=re.S)):
        if found["space"] == "shared":
            place(shared, *array(found))
    if ".func" in outside[0]:
        raise Unknown("functions that are called (.func)")
    parts = []
    for entry in ENTRY.finditer(text):
        parameters = re.findall(r"\.param\s+\.(\w+)\s+(?:\.ptr\s+[\w.\s]*?)?([\w$]+)\s*(?:,|$)", entry[2].strip())
        if entry[2].count(".param") != len(parameters):
            raise Unknown(f"the parameters of {entry[1]}")
        kernel = Kernel(entry[1].replace("$", "_"), [(kind, name) for kind, name in parameters], shared)
        end = text.index("\n}", entry.end())
        translate(kernel, text[entry.end() : end], text.count("\n", 0, entry.end()) + 1)
        parts.append(function(kernel))
    if not parts:
        raise Unknown("a module without an entry")
    names = ", ".join(f"&code_{name}" for name in re.findall(r"const struct code code_([\w$]+) =", "".join(parts)))
    return f'#include "ptx.h"\n{"".join(parts)}\nconst struct code *const codes[] = {{ {names}, 0 }};\n'


FLAGS = ["-std=gnu11", "-O1", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-w"]


def build(source: Path, library: Path) -> None:
    """Translate and compile; the library is there at once or not at all."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        code, made = Path(scratch) / "kernels.c", Path(scratch) / library.name
        code.write_text(module(source.read_text()))
        compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
        subprocess.run([compiler, *FLAGS, f"-I{here}", "-o", made, code, "-lm"], check=True)
        made.replace(library)


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]), Path(sys.argv[2]))
    except Unknown as error:
        sys.exit(f"PTX: {error}")
