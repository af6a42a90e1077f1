"""PTX to C, which ptx_ops.h completes: `python ptx.py in.ptx out.c`. What is not known is refused, with its line."""

import re
import sys
from pathlib import Path

BITS = {kind + str(bits): bits for kind in "usb" for bits in (8, 16, 32, 64)} | {"f32": 32, "f64": 64, "pred": 1}
FLOATS = {"f32", "f64"}
SPACES = {"global": "GLOBAL", "shared": "SHARED", "local": "LOCAL", "const": "GLOBAL"}
FIRST, GAP = 1024, 256  # shared memory starts at an address that is not 0, and its arrays do not touch

# Opcodes: the type of the result, the types of the operands (T: the instruction's, W: twice as wide, U: u32, P: a
# predicate) and the value in C.
INTEGER = {
    "add": "T TT {a} + {b}",
    "sub": "T TT {a} - {b}",
    "mul.lo": "T TT {a} * {b}",
    "mul.hi": "T TT ({W}){a} * {b} >> {n}",
    "mul.wide": "W TT ({W}){a} * {b}",
    "mad.lo": "T TTT {a} * {b} + {c}",
    "mad.hi": "T TTT ({T})(({W}){a} * {b} >> {n}) + {c}",
    "mad.wide": "W TTW ({W}){a} * {b} + {c}",
    "div": "T TT div_{T}({a}, {b})",
    "rem": "T TT rem_{T}({a}, {b})",
    "neg": "T T -{a}",
    "abs": "T T {a} < 0 ? -{a} : {a}",
    "min": "T TT {a} < {b} ? {a} : {b}",
    "max": "T TT {a} > {b} ? {a} : {b}",
    "and": "T TT {a} & {b}",
    "or": "T TT {a} | {b}",
    "xor": "T TT {a} ^ {b}",
    "not": "T T ~{a}",
    "cnot": "T T !{a}",
    "shl": "T TU SHIFT_LEFT({a}, {b})",
    "shr": "T TU SHIFT_RIGHT({a}, {b})",
    "shf.l.wrap": "T TTU (((u64){b} << 32 | {a}) << ({c} & 31)) >> 32",
    "shf.r.wrap": "T TTU ((u64){b} << 32 | {a}) >> ({c} & 31)",
    "popc": "U T __builtin_popcountll({a})",
    "clz": "U T LEADING({a})",
    "brev": "T T reversed({a}, {n})",
    "bfe": "T TUU field({a}, {b}, {c}, {n}, ({T})-1 < 0)",
    "bfi": "T TTUU inserted({a}, {b}, {c}, {d}, {n})",
    "prmt": "T TTU permuted({a}, {b}, {c})",
    "selp": "T TTP {c} ? {a} : {b}",
}
FLOATING = {
    "add": "T TT {a} + {b}",
    "sub": "T TT {a} - {b}",
    "mul": "T TT {a} * {b}",
    "div": "T TT {a} / {b}",
    "fma": "T TTT FMA_{T}({a}, {b}, {c})",
    "mad": "T TTT FMA_{T}({a}, {b}, {c})",
    "neg": "T T -{a}",
    "abs": "T T __builtin_fabs{f}({a})",
    "min": "T TT SMALLER({a}, {b})",
    "max": "T TT LARGER({a}, {b})",
    "sqrt": "T T sqrt{f}({a})",
    "rcp": "T T 1 / {a}",
    "rsqrt": "T T 1 / sqrt{f}({a})",
    "ex2": "T T exp2{f}({a})",
    "lg2": "T T log2{f}({a})",
    "sin": "T T sin{f}({a})",
    "cos": "T T cos{f}({a})",
    "tanh": "T T tanh{f}({a})",
    "copysign": "T TT copysign{f}({b}, {a})",
    "selp": "T TTP {c} ? {a} : {b}",
}
for way in "zmp":  # towards zero, minus and plus infinity
    FLOATING[f"add.r{way}.f32"] = f"T TT fma_toward({{a}}, 1, {{b}}, '{way}')"
    FLOATING[f"sub.r{way}.f32"] = f"T TT fma_toward({{a}}, 1, -{{b}}, '{way}')"
    FLOATING[f"mul.r{way}.f32"] = f"T TT fma_toward({{a}}, {{b}}, {{a}} * {{b}} < 0 ? -0.0f : 0.0f, '{way}')"
    FLOATING[f"fma.r{way}.f32"] = f"T TTT fma_toward({{a}}, {{b}}, {{c}}, '{way}')"
PREDICATE = {"and": "T TT {a} & {b}", "or": "T TT {a} | {b}", "xor": "T TT {a} ^ {b}", "not": "T T !{a}"}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARED = {name: f"{{a}} {sign} {{b}}" for name, sign in SIGNS.items()}
COMPARED |= {name: COMPARED[as_] for name, as_ in {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.items()}
ORDERED = {name: f"({{a}} == {{a}} && {{b}} == {{b}} && {{a}} {sign} {{b}})" for name, sign in SIGNS.items()}
UNORDERED = {name + "u": f"({{a}} != {{a}} || {{b}} != {{b}} || {{a}} {sign} {{b}})" for name, sign in SIGNS.items()}
FLOAT_COMPARED = ORDERED | UNORDERED | {"num": "({a} == {a} && {b} == {b})", "nan": "({a} != {a} || {b} != {b})"}
ATOMIC = {
    "add": "old + {b}",
    "min": "old < {b} ? old : {b}",
    "max": "old > {b} ? old : {b}",
    "and": "old & {b}",
    "or": "old | {b}",
    "xor": "old ^ {b}",
    "exch": "{b}",
    "cas": "old == {b} ? {c} : old",
    "inc": "old >= {b} ? 0 : old + 1",
    "dec": "!old || old > {b} ? {b} : old - 1",
}
ROUNDED = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SPECIAL = {"tid": "t->tid", "ntid": "t->block->size", "ctaid": "t->block->at", "nctaid": "t->block->grid"}
PLAIN = {"%laneid": "(t->index % 32)", "%warpid": "(t->index / 32)", "WARP_SZ": "32"}
HINTS = {"volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "ca", "cg"}
HINTS |= {"cs", "lu", "cv", "wb", "wt", "nc"}  # here every access is in order, and seen by all at once


class Refused(ValueError):
    """PTX that is not translated: `line N: instruction: why`."""


def statements(text: str):
    """Yield (line, statement): `{`, `}`, `label:`, or what ends in `;`. A declared function comes up to its `{`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", lambda it: "\n" * it[0].count("\n"), text, flags=re.S)
    text = re.sub(r"^\s*\.(version|target|address_size|file|loc)\b[^\n]*", "", text, flags=re.M)
    token = re.compile(r"\s*([{}]|[\w$%]+\s*:(?!:)|[^;{]*\.(?:entry|func)\b[^{;]*|[^;]*;)")
    at = line = 0
    while found := token.match(text, at):
        line += text.count("\n", at, found.start(1))
        yield line + 1, " ".join(found[1].rstrip(";").split())
        line += text.count("\n", found.start(1), found.end())
        at = found.end()
    if text[at:].strip():
        raise Refused(f"line {line + 1}: not understood: {text[at:].strip()[:60]!r}")


def split(text: str, by: str = ",") -> list[str]:
    """Split operands, but not within brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[{(") - (c in "]})")
        parts[-1] += c
        if c == by and not depth:
            parts[-1] = parts[-1][:-1]
            parts.append("")
    return [part.strip() for part in parts if part.strip()]


def variable(text: str) -> tuple[str, int, int]:
    """Name, bytes and alignment of `.align 4 .b8 name[16]`; an array of open size has -1 bytes."""
    found = re.search(r"\.([usbf]\d+)\s+([\w$]+)\s*(\[(\d*)\])?$", text)
    if not found or found[1] not in BITS:
        raise Refused(f"{text}: not a variable that is known")
    item = BITS[found[1]] // 8
    size = item if found[3] is None else item * int(found[4]) if found[4] else -1
    align = re.search(r"\.align (\d+)", text)
    return found[2], size, int(align[1]) if align else item


def placed(variables: list[tuple[str, int, int]], first: int, gap: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Lay variables one after another: name -> (offset, bytes), and the end."""
    there = {}
    for name, size, align in sorted(variables, key=lambda it: it[1] < 0) if gap else variables:
        first = -(-first // align) * align
        there[name] = first, size
        first = -(-(first + max(size, 0) + gap) // max(gap, 1)) * max(gap, 1)
    return there, first


class Kernel:
    """The body of one `.entry`, in C."""

    def __init__(self, name: str, parameters: str, shared: list[tuple[str, int, int]], sites: list[str]) -> None:
        self.name, self.sites = name, sites
        self.parameters, self.parameter_bytes = placed([variable(p) for p in split(parameters)], 0, 0)
        self.shared, self.local = list(shared), []
        self.registers: list[dict[str, str]] = [{}]
        self.code: list[str] = []
        self.line, self.text = 0, ""

    def arrays(self) -> dict[str, tuple[int, int]]:
        return placed(self.shared, FIRST, GAP)[0]

    def refuse(self, why: str) -> Refused:
        return Refused(f"line {self.line}: {self.text}: {why}")

    def site(self) -> int:
        """The number of this instruction among those that may fail."""
        self.sites.append(f'{{{self.line}, "{self.text}"}}')
        return len(self.sites) - 1

    # --- operands

    def register(self, name: str) -> str | None:
        return next((scope[name] for scope in reversed(self.registers) if name in scope), None)

    def use(self, text: str, kind: str) -> str:
        """What an operand is worth, as C of the type `kind`."""
        if text.startswith("!"):
            return f"!{self.use(text[1:], kind)}"
        if held := self.register(text):
            name = named(text)
            if (held == "pred") != (kind == "pred"):
                raise self.refuse(f"{text} is a register of type {held}")
            if kind in FLOATS:
                return name if held == kind else f"as_{kind}({name})"
            return f"(({kind}){f'bits_{held}({name})' if held in FLOATS else name})"
        if number := re.fullmatch(r"0[fFdD]([0-9a-fA-F]{8}|[0-9a-fA-F]{16})", text):
            width = 4 * len(number[1])
            return f"as_f{width}(0x{number[1]}u)" if kind in FLOATS else f"(({kind})0x{number[1]}u)"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text) and kind not in FLOATS:
            digits = text.rstrip("U")
            value = int(digits, 8 if re.fullmatch(r"-?0\d+", digits) else 0)
            return f"(({kind})0x{value % 2**64:x}u)"
        if special := re.fullmatch(r"%(n?tid|n?ctaid)\.([xyz])", text):
            return f"(({kind}){SPECIAL[special[1]]}[{'xyz'.index(special[2])}])"
        if text in PLAIN:
            return f"(({kind}){PLAIN[text]})"
        if text in self.arrays():
            return f"(({kind}){self.arrays()[text][0]}u)"
        if text in {name for name, _, _ in self.local}:
            return f"(({kind})(u64){named(text)})"
        raise self.refuse(f"{text} is not known")

    def give(self, text: str, kind: str, value: str) -> str:
        """C that writes a value of the type `kind` to a register, which may be wider."""
        held = self.register(text)
        if text == "_":
            return f"(void)({value});"
        if held is None or (held == "pred") != (kind == "pred") or BITS[held] < BITS[kind]:
            raise self.refuse(f"{text} is not a register for {kind}")
        if kind in FLOATS:
            return f"{named(text)} = {value};" if held == kind else f"{named(text)} = bits_{kind}({value});"
        value = f"({kind})({value})"
        return f"{named(text)} = {f'as_{held}({value})' if held in FLOATS else value};"

    def address(self, text: str) -> tuple[str, int]:
        """What stands in brackets, and what is added to it."""
        found = re.fullmatch(r"\[\s*([^\s+]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if not found:
            raise self.refuse(f"{text} is no address")
        return found[1], int(found[2] or "0", 0)

    def at(self, kind: str, count: int, space: str, text: str) -> str:
        """C for a pointer to `count` values of the type `kind`."""
        name, offset = self.address(text)
        held = self.register(name)
        start = self.use(name, held if held in ("b32", "u32") else "u64")
        return f"AT({kind}, {count}, {space}, {start} + (u64){offset % 2**64:#x}u, {self.site()})"

    # --- instructions

    def instruction(self, text: str) -> str:
        guard, opcode, rest = re.fullmatch(r"(?:@(!?[%\w$]+)\s+)?([\w.:]+)\s*(.*)", text).groups()
        base, *words = opcode.replace("::", "_").split(".")
        kinds = [word for word in words if word in BITS]
        words = [word for word in words if word not in BITS]
        method = getattr(self, f"do_{base}", self.arithmetic)
        try:
            code = method(base, words, kinds, split(rest))
        except (IndexError, KeyError) as error:
            raise self.refuse(f"this form is not known ({error})") from None
        return f"if ({self.use(guard, 'pred')}) {{ {code} }}" if guard else code

    def arithmetic(self, base, words, kinds, operands) -> str:
        if len(kinds) != 1:
            raise self.refuse("this instruction is not known")
        kind = kinds[0]
        if kind in FLOATS:
            table, dropped = FLOATING, {"rn", "approx", "full", "ftz", "sat"}
        else:
            table, dropped = (PREDICATE if kind == "pred" else INTEGER), set()
        name = ".".join([base, *(word for word in words if word not in dropped)])
        form = table.get(f"{name}.{kind}") or table.get(name)
        if form is None:
            raise self.refuse("this instruction is not known")
        result, takes, value = form.split(None, 2)
        wide = f"{kind[0]}{2 * BITS[kind]}"
        types = {"T": kind, "W": wide, "U": "u32", "P": "pred"}
        if len(operands) != len(takes) + 1:
            raise self.refuse(f"{len(takes) + 1} operands are expected")
        used = [self.use(operand, types[take]) for operand, take in zip(operands[1:], takes)]
        if "ftz" in words:
            used = [f"ftz({it})" if take == "T" else it for it, take in zip(used, takes)]
        value = value.format(**dict(zip("abcd", used)), T=kind, W=wide, n=BITS[kind], f="f" * (kind == "f32"))
        value = f"ftz({value})" if "ftz" in words else value
        return self.give(operands[0], types[result], f"SATURATED({value})" if "sat" in words else value)

    def do_setp(self, base, words, kinds, operands) -> str:
        kind, how = kinds[0], words[0]
        a, b = (self.use(it, kind) for it in operands[1:3])
        if "ftz" in words:
            a, b = f"ftz({a})", f"ftz({b})"
        value = (FLOAT_COMPARED if kind in FLOATS else COMPARED)[how].format(a=a, b=b)
        rest = [word for word in words[1:] if word != "ftz"]
        to = split(operands[0], "|")
        both = [value, f"!({value})"]
        if rest:
            sign = {"and": "&", "or": "|", "xor": "^"}[rest[0]]
            both = [f"({it}) {sign} {self.use(operands[3], 'pred')}" for it in both]
        elif len(operands) != 3:
            raise self.refuse("3 operands are expected")
        pair = zip((f"both_{k}" for k in "01"), both)
        made = "".join(f"pred {name} = {it}; " for name, it in pair)
        return f"{{ {made}{' '.join(self.give(it, 'pred', f'both_{k}') for k, it in enumerate(to))} }}"

    def do_cvt(self, base, words, kinds, operands) -> str:
        to, source = kinds
        value = self.use(operands[1], source)
        value = f"ftz({value})" if "ftz" in words and source == "f32" else value
        ways = [word for word in words if word not in ("ftz", "sat")]
        low, high = (-(2 ** (BITS[to] - 1)), 2 ** (BITS[to] - 1) - 1) if to[0] == "s" else (0, 2 ** BITS[to] - 1)
        low, high = f"{low % 2**64:#x}u", f"{high:#x}u"
        if source in FLOATS and to not in FLOATS:
            nan = 2 ** (BITS[to] - 1) if source == "f64" or BITS[to] == 64 else 0
            value = f"TO_INTEGER({to}, {ROUNDED[ways[0]]}({value}), {low}, {high}, {nan:#x}u)"
        elif to not in FLOATS:
            value = f"clamped({value}, ({to}){low}, ({to}){high})" if "sat" in words else value
        else:
            if source == to and ways:
                value = f"{ROUNDED[ways[0]]}({value})" if ways != ["rn"] else value
            elif ways not in (["rn"], []):
                raise self.refuse("only rounding to the nearest is known here")
            value = f"({to}){value}"
            value = f"SATURATED({value})" if "sat" in words else value
            value = f"ftz({value})" if "ftz" in words and to == "f32" else value
        return self.give(operands[0], to, value)

    def do_mov(self, base, words, kinds, operands) -> str:
        to, source = operands
        kind = kinds[0]
        if source.startswith("{"):
            parts = split(source[1:-1])
            bits = BITS[kind] // len(parts)
            value = " | ".join(f"({kind}){self.use(it, f'b{bits}')} << {k * bits}" for k, it in enumerate(parts))
            return self.give(to, kind, value)
        if to.startswith("{"):
            parts = split(to[1:-1])
            bits = BITS[kind] // len(parts)
            each = (self.give(it, f"b{bits}", f"whole >> {k * bits}") for k, it in enumerate(parts))
            return f"{{ {kind} whole = {self.use(source, kind)}; {' '.join(each)} }}"
        return self.give(to, kind, self.use(source, kind))

    def do_cvta(self, base, words, kinds, operands) -> str:
        shift = {"shared": "+ WINDOW", "to.shared": "- WINDOW"}.get(".".join(words), "")
        if words[-1] not in SPACES:
            raise self.refuse("this space is not known")
        return self.give(operands[0], kinds[0], f"{self.use(operands[1], kinds[0])} {shift}")

    def access(self, words) -> tuple[str, int]:
        """Space and number of values of a load or store."""
        words = [w for w in words if w not in HINTS and not re.match(r"(L1|L2|level)_", w)]
        space = next((w for w in words if w in SPACES), None)
        count = next((int(w[1]) for w in words if w in ("v2", "v4")), 1)
        if rest := [w for w in words if w != space and w not in ("v2", "v4")]:
            raise self.refuse(f".{rest[0]} is not known")
        return SPACES[space] if space else "GENERIC", count

    def do_ld(self, base, words, kinds, operands) -> str:
        kind = kinds[0]
        to = split(operands[0][1:-1]) if operands[0].startswith("{") else [operands[0]]
        if "param" in words:
            name, offset = self.address(operands[1])
            start, size = self.parameters[name]
            offset += start
            if offset + len(to) * BITS[kind] // 8 > start + size:
                raise self.refuse("beyond the parameter")
            each = [f"PARAMETER({kind}, {offset + k * BITS[kind] // 8})" for k in range(len(to))]
            return " ".join(self.give(it, kind, value) for it, value in zip(to, each))
        space, count = self.access(words)
        if count != len(to):
            raise self.refuse(f"{count} registers are expected")
        each = (self.give(it, kind, f"at[{k}]") for k, it in enumerate(to))
        return f"{{ const {kind} *at = {self.at(kind, count, space, operands[1])}; {' '.join(each)} }}"

    def do_st(self, base, words, kinds, operands) -> str:
        kind = kinds[0]
        source = split(operands[1][1:-1]) if operands[1].startswith("{") else [operands[1]]
        space, count = self.access(words)
        if count != len(source):
            raise self.refuse(f"{count} registers are expected")
        each = (f"at[{k}] = {self.use(it, kind)};" for k, it in enumerate(source))
        return f"{{ {kind} *at = {self.at(kind, count, space, operands[0])}; {' '.join(each)} }}"

    def do_atom(self, base, words, kinds, operands) -> str:
        kind = kinds[0]
        how = next(w for w in words if w in ATOMIC)
        space, _ = self.access([w for w in words if w != how])
        to, where, *more = operands if base == "atom" else ["_", *operands]
        value = ATOMIC[how].format(**dict(zip("bc", (self.use(it, kind) for it in more))))
        pointer = self.at(kind, 1, space, where)
        return f"{{ {kind} *at = {pointer}, old = *at; *at = {value}; {self.give(to, kind, 'old')} }}"

    do_red = do_atom

    def do_bra(self, base, words, kinds, operands) -> str:
        return f"goto {named(operands[0])};"

    def do_bar(self, base, words, kinds, operands) -> str:
        if [w for w in words if w not in ("cta", "aligned")] != ["sync"] or operands != ["0"]:
            raise self.refuse("only bar.sync 0 is known")
        return f"t->block->barrier(t, {self.site()});"

    do_barrier = do_bar

    def do_ret(self, base, words, kinds, operands) -> str:
        return "return;"

    do_exit = do_ret

    def do_trap(self, base, words, kinds, operands) -> str:
        return f"t->block->trap(t, {self.site()});"

    def do_membar(self, base, words, kinds, operands) -> str:
        return ";"

    do_fence = do_membar

    # --- the rest of a body

    def declare(self, text: str) -> None:
        """`.reg .b32 %r<3>`, or `.reg .b16 a, b`; `.shared` and `.local` arrays."""
        if text.startswith(".reg"):
            kind, names = re.fullmatch(r"\.reg \.(\w+) (.*)", text).groups()
            if kind not in BITS:
                raise self.refuse(f"registers of type {kind} are not known")
            kind = kind if kind in FLOATS or kind == "pred" else f"u{BITS[kind]}"
            every = []
            for name in split(names):
                many = re.fullmatch(r"(.+)<(\d+)>", name)
                every += [f"{many[1]}{k}" for k in range(int(many[2]))] if many else [name]
            self.registers[-1] |= dict.fromkeys(every, kind)
            garbage = {"pred": "1", "f32": "as_f32(0xA5A5A5A5u)", "f64": "as_f64(0xA5A5A5A5A5A5A5A5u)"}
            initial = garbage.get(kind, f"({kind})0xA5A5A5A5A5A5A5A5u")
            self.code.append(f"{kind} {', '.join(f'{named(name)} = {initial}' for name in every)};")
        elif ".shared" in text:
            self.shared.append(variable(text))
        elif ".local" in text:
            name, size, align = variable(text)
            if self.local or size > 16384:
                raise self.refuse("one array in local memory, of at most 16 KiB, is known")
            self.local.append((name, size, align))
            self.code.append(f"_Alignas({max(align, 16)}) char {named(name)}[{size}];")
            self.code.append(
                f"memset({named(name)}, 0xA5, {size}), t->local = (u64){named(name)}, t->local_bytes = {size};"
            )
        elif not text.startswith(".pragma"):
            raise self.refuse("not known")

    def statement(self, line: int, text: str) -> None:
        self.line, self.text = line, text.replace('"', "'")
        if text in "{}":
            self.registers.append({}) if text == "{" else self.registers.pop()
            self.code.append(text)
        elif text.endswith(":"):
            self.code.append(f"{named(text[:-1].strip())}:;")
        elif text.startswith("."):
            self.declare(text)
        elif text:
            self.code.append(self.instruction(text))


def named(text: str) -> str:
    """The name in C of a register, label or array."""
    return "p_" + re.sub(r"\W", "_", text)


def module(text: str) -> list[Kernel]:
    """Translate every kernel; `.func`s are only refused where they are called."""
    kernels, shared, sites, depth, current = [], [], [], 0, None
    for line, statement in statements(text):
        if statement == "}":
            depth -= 1
        if depth == 0 and statement == "{":
            pass
        elif depth == 0 and statement == "}":
            current = None
        elif depth:
            if current:
                current.statement(line, statement)
        elif entry := re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", statement):
            current = Kernel(entry[1], entry[2] or "", shared, sites)
            kernels.append(current)
        elif ".shared" in statement:
            shared.append(variable(statement))
        elif not re.search(r"\.(func|global|const)\b", statement):
            raise Refused(f"line {line}: {statement}: not known")
        if statement == "{":
            depth += 1
    return kernels


def translate(text: str) -> str:
    """Return C for the PTX of a module."""
    made = module(text)
    out = ['#include "ptx_ops.h"', "#define FMA_f32 __builtin_fmaf", "#define FMA_f64 __builtin_fma"]
    out.append(f"static struct span spans[{len(made[0].sites) + 1}];" if made else "static struct span spans[1];")
    table = []
    for k, kernel in enumerate(made):
        out += [f"static void kernel_{k}(struct thread *t) {{", *kernel.code, "}"]
        arrays = kernel.arrays()
        dynamic = next((start for start, size in arrays.values() if size < 0), 0)
        fixed = [(start, size) for start, size in arrays.values() if size >= 0]
        for what, ranges in (("parameters", kernel.parameters.values()), ("arrays", fixed)):
            body = ", ".join(f"{{{start}, {size}}}" for start, size in ranges) or "{0, 0}"
            out.append(f"static const struct range {what}_{k}[] = {{{body}}};")
        counts = f"{len(kernel.parameters)}, {len(fixed)}, parameters_{k}, arrays_{k}, {kernel.parameter_bytes}"
        end = max((start + size for start, size in fixed), default=FIRST)
        table.append(f'{{"{kernel.name}", kernel_{k}, {counts}, {max(end, dynamic)}, {dynamic}}}')
    sites = made[0].sites if made else []
    out.append(f"static const struct site sites[] = {{{', '.join(sites) or '{0, 0}'}}};")
    out.append(f"static const struct kernel kernels[] = {{{', '.join(table) or '{0}'}}};")
    visible = '__attribute__((visibility("default")))'
    out.append(f"{visible} const struct module ptx_module = {{{len(made)}, {len(sites)}, kernels, sites, spans}};")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    try:
        Path(sys.argv[2]).write_text(translate(Path(sys.argv[1]).read_text()))
    except Refused as refused:
        sys.exit(str(refused))
