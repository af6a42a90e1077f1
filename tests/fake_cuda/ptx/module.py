"""A module of PTX as C."""

import re

from .opcodes import PLAIN, SPECIAL, Instructions
from .text import BITS, FIRST, FLOATS, Refused, apart, named, packed, split, statements, variable


class Kernel(Instructions):
    """The body of one `.entry`, in C."""

    def __init__(self, name: str, parameters: str, module: "Module") -> None:
        self.name, self.module = name, module
        self.parameters, self.parameter_bytes = packed([variable(p) for p in split(parameters)])
        self.shared: list[tuple[str, int, int]] = list(module.shared)
        self.local: list[tuple[str, int, int]] = []
        self.registers: list[dict[str, str]] = [{}]
        self.labels: set[str] = set()
        self.code: list[str] = []
        self.line, self.text = 0, ""

    def define(self, k: int, out: list[str]) -> str:
        """Append the function in C; return its row in the table of kernels."""
        local = -(-packed(self.local)[1] // 16) * 16
        garbage = [f"memset((char *)t->local, 0xA5, {local});"] if local else []
        out += [f"static void kernel_{k}(struct thread *t) {{", *garbage, *self.code, "}"]
        arrays = apart(self.shared)
        dynamic = next((start for start, size in arrays.values() if size < 0), 0)
        fixed = [(start, size) for start, size in arrays.values() if size >= 0]
        for what, ranges in (("parameters", self.parameters.values()), ("arrays", fixed)):
            body = ", ".join(f"{{{start}, {size}}}" for start, size in ranges) or "{0, 0}"
            out.append(f"static const struct range {what}_{k}[] = {{{body}}};")
        counts = f"{len(self.parameters)}, {len(fixed)}, parameters_{k}, arrays_{k}, {self.parameter_bytes}, {local}"
        end = max([FIRST, dynamic, *(start + size for start, size in fixed)])
        return f'{{"{self.name}", kernel_{k}, {counts}, {end}, {dynamic}}}'

    def refuse(self, why: str) -> Refused:
        return Refused(f"line {self.line}: {self.text}: {why}")

    def site(self) -> int:
        """The number of this instruction among those that may fail."""
        self.module.sites.append(f'{{{self.line}, "{self.text}"}}')
        return len(self.module.sites) - 1

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
        if array := apart(self.shared).get(text):
            return f"(({kind}){array[0]}u)"
        if array := packed(self.local)[0].get(text):
            return f"(({kind})(t->local + {array[0]}u))"
        if text in self.module.variables:
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

    # --- the rest of a body

    def declare(self, text: str) -> None:
        """`.reg .b32 %r<3>`, or `.reg .b16 a, b`; an array in `.shared` or `.local` memory."""
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
            self.local.append(variable(text))
        elif not text.startswith(".pragma"):
            raise self.refuse("not known")

    def statement(self, line: int, text: str) -> None:
        """One statement of the body."""
        self.line, self.text = line, text.replace('"', "'").replace("\\", "/")
        if text in "{}":
            self.registers.append({}) if text == "{" else self.registers.pop()
            self.code.append(text)
        elif text.endswith(":"):
            label = named(text[:-1].strip())
            self.labels.add(label)
            self.code.append(f"{label}:;")
        elif text.startswith("."):
            self.declare(text)
        elif text:
            self.code.append(self.instruction(text))


class Module:
    """The kernels and the variables of a text. `.func`s are refused where they are called."""

    def __init__(self, text: str) -> None:
        self.kernels: list[Kernel] = []
        self.shared: list[tuple[str, int, int]] = []
        self.variables: dict[str, str] = {}  # in global and constant memory, with their declarations in C
        self.sites: list[str] = []
        depth, current = 0, None
        for line, statement in statements(text):
            depth -= statement == "}"
            if depth and current:
                current.statement(line, statement)
            elif not depth and statement and statement not in "{}":
                current = self.head(line, statement)
            depth += statement == "{"
        if depth:
            raise Refused("the last kernel does not end")

    def head(self, line: int, text: str) -> "Kernel | None":
        """What stands outside of functions: a variable, or the head of a function; the kernel it begins."""
        try:
            if entry := re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", text):
                self.kernels.append(Kernel(entry[1], entry[2] or "", self))
                return self.kernels[-1]
            declared, _, values = text.partition("=")
            if ".shared" in text:
                self.shared.append(variable(declared.strip()))
            elif re.search(r"\.(global|const)\b", text):
                self.place(declared.strip(), values.strip(" {}"))
            elif not re.search(r"\.func\b", text):
                raise Refused(f"{text}: not known")
        except Refused as refused:
            raise Refused(f"line {line}: {refused}") from None
        return None

    def place(self, declared: str, values: str) -> None:
        """A variable in global or constant memory, with its first values."""
        name, size, align = variable(declared)
        kind = re.search(r"\.([usbf]\d+)\s+[\w$]+\s*(\[|$)", declared)[1]
        if not all(re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?|0[fFdD][0-9a-fA-F]+", it) for it in split(values)):
            raise Refused(f"{name}: only numbers are known as first values")
        numbers = [f"0x{it[2:]}u" if it[:2] in ("0f", "0F", "0d", "0D") else it for it in split(values)]
        code = f"static u{BITS[kind]} {named(name)}[{8 * size // BITS[kind]}] = {{{', '.join(numbers) or 0}}};"
        self.variables[name] = f"_Alignas({align}) {code}"


def translate(text: str) -> str:
    """Return C for the PTX of a module."""
    made = Module(text)
    out = [f'#include "ops.h"\nstatic struct span spans[{len(made.sites) + 1}];', *made.variables.values()]
    table = [kernel.define(k, out) for k, kernel in enumerate(made.kernels)]
    places = [f"{{(u64){named(name)}, sizeof {named(name)}}}" for name in made.variables]
    for what, rows in (("site", made.sites), ("kernel", table), ("place", places)):
        out.append(f"static const struct {what} {what}s[] = {{{', '.join(rows) or '{0}'}}};")
    counts = f"{len(table)}, {len(made.sites)}, {len(places)}"
    visible = '__attribute__((visibility("default")))'
    out.append(f"{visible} const struct module ptx_module = {{{counts}, kernels, sites, places, spans}};")
    return "\n".join(out) + "\n"
