"""Opcodes as C, and the forms that instructions have."""

import re

from .text import BITS, FLOATS, Refused, named, split

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
    "min.NaN": "T TT {a} != {a} || {b} != {b} ? NAN : SMALLER({a}, {b})",
    "max.NaN": "T TT {a} != {a} || {b} != {b} ? NAN : LARGER({a}, {b})",
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
    FLOATING[f"mul.r{way}.f32"] = f"T TT fma_toward({{a}}, {{b}}, copysignf(0, {{a}} * {{b}}), '{way}')"
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
SPACES = {"global": "GLOBAL", "shared": "SHARED", "local": "LOCAL", "const": "GLOBAL"}
ROUNDED = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SPECIAL = {"tid": "t->tid", "ntid": "t->block->size", "ctaid": "t->block->at", "nctaid": "t->block->grid"}
PLAIN = {"%laneid": "(t->index % 32)", "%warpid": "(t->index / 32)", "WARP_SZ": "32"}
HINTS = {"volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "ca", "cg"}
HINTS |= {"cs", "lu", "cv", "wb", "wt", "nc"}  # here every access is in order, and seen by all at once


class Instructions:
    """What becomes of each instruction; the kernel says what their operands are."""

    # --- instructions

    def instruction(self, text: str) -> str:
        found = re.fullmatch(r"(?:@(!?[%\w$]+)\s+)?([\w.:]+)\s*(.*)", text)
        if found is None:
            raise self.refuse("this is no instruction")
        guard, opcode, rest = found.groups()
        base, *words = opcode.replace("::", "_").split(".")
        kinds = [word for word in words if word in BITS]
        words = [word for word in words if word not in BITS]
        method = getattr(self, f"do_{base}", self.arithmetic)
        try:
            code = method(base, words, kinds, split(rest))
        except Refused:
            raise
        except (IndexError, KeyError, ValueError, StopIteration) as error:
            raise self.refuse("this form is not known") from error
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
            used = [f"ftz_{kind}({it})" if take == "T" else it for it, take in zip(used, takes)]
        value = value.format(**dict(zip("abcd", used)), T=kind, W=wide, n=BITS[kind], f="f" * (kind == "f32"))
        value = f"ftz_{kind}({value})" if "ftz" in words else value
        return self.give(operands[0], types[result], f"SATURATED({value})" if "sat" in words else value)

    def do_setp(self, base, words, kinds, operands) -> str:
        kind, how = kinds[0], words[0]
        a, b = (self.use(it, kind) for it in operands[1:3])
        if "ftz" in words:
            a, b = f"ftz_f32({a})", f"ftz_f32({b})"
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
        value = f"ftz_f32({value})" if "ftz" in words and source == "f32" else value
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
            value = f"ftz_f32({value})" if "ftz" in words and to == "f32" else value
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
        label = named(operands[0])
        return f"AGAIN({self.site()}); goto {label};" if label in self.labels else f"goto {label};"

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
