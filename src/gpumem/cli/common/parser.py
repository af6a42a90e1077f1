"""The parser of every command: one-line errors that say what was perhaps meant, examples, options that all have."""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gpumem.base import arguments
from gpumem.base.names import meant, one_of, unknown

if TYPE_CHECKING:
    # argparse has no public names for what `add_subparsers` and `add_argument_group` return.
    Commands = argparse._SubParsersAction["Parser"]  # noqa: SLF001  no public name
    Group = argparse._ActionsContainer  # noqa: SLF001  no public name
else:
    Commands = Group = object


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the value of an option, and objects to it by a `ValueError` that names the option."""

    read: Callable[[str, str], Any]
    what: str

    def __call__(self, text: str) -> Any:
        return self.read(text, self.what)


@dataclass(frozen=True, slots=True)
class Option:
    """An option or a file of a command, declared: its names, and what else `add_argument` takes."""

    names: tuple[str, ...]
    how: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """The attribute that has its value."""
        return str(self.how.get("dest", self.names[-1].lstrip("-").replace("-", "_")))

    def value(self, args: argparse.Namespace) -> Any:
        """Return what was given; None where nothing was."""
        return getattr(args, self.dest)

    def add(self, where: Group) -> None:
        """Add it to a parser or a group."""
        where.add_argument(*self.names, **self.how)


@dataclass(frozen=True, slots=True)
class Section:
    """Options that help shows under a title of their own."""

    title: str
    options: Iterable[Declared]

    def add(self, where: Group) -> None:
        """Add them to a parser."""
        add_options(where.add_argument_group(self.title), *self.options)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Options of which at most one may be given, or, where that is required, one has to be."""

    options: Iterable[Option]
    required: bool = False

    def add(self, where: Group) -> None:
        """Add them to a parser or a group."""
        add_options(where.add_mutually_exclusive_group(required=self.required), *self.options)


Declared: TypeAlias = "Option | Section | OneOf"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line, declared: its help is what `run` says of itself."""

    name: str
    run: Callable[[argparse.Namespace], int]
    help: str
    options: Iterable[Declared]
    examples: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def add(self, commands: Commands) -> None:
        """Add it to the commands of a parser."""
        p = commands.add_parser(self.name, help=self.help, description=self.run.__doc__, examples=self.examples)
        add_options(p, *self.options)
        p.set_defaults(run=self.run, **self.defaults)


def option(*names: str, read: Callable[[str, str], Any] | None = None, **how: Any) -> Option:
    """Declare an option; `read(text, name)` returns its value, and names the option where it objects.

    >>> parser = Parser()
    >>> add_options(parser, option("--seconds", read=positive))
    >>> parser.parse_args(["--seconds", "3"]).seconds
    3.0
    >>> parser.parse_args(["--seconds", "0"])
    Traceback (most recent call last):
    ValueError: --seconds: 0.0 is not positive and finite
    """
    return Option(names, how if read is None else {**how, "type": Reader(read, names[-1])})


def add_options(where: Group, *options: Declared) -> None:
    """Add what is declared to a parser, or to a group of it."""
    for one in options:
        one.add(where)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on stderr and exit status 2.

    Options are never abbreviated: what is unique today may be ambiguous in the next version.

    Parameters
    ----------
    examples : sequence of str
        Command lines, shown below the options.
    after : str
        What is shown below them.
    **more
        As of `argparse.ArgumentParser`.
    """

    def __init__(self, *, examples: Sequence[str] = (), after: str = "", **more: Any) -> None:
        epilog = "\n".join(["examples:", *(f"  {line}" for line in examples), "", after]) if examples else after
        # Python 3.13 takes the margin off docstrings itself; before, the help would show it.
        description = inspect.cleandoc(more.pop("description", None) or "") or None
        super().__init__(
            description=description,
            **{"epilog": epilog.rstrip() or None, "formatter_class": _Formatter, "allow_abbrev": False, **more},
        )
        self.register("type", int, whole)
        self.register("type", float, number)
        for option, text in (
            ("--quiet", "say nothing on stderr but what went wrong"),
            ("--traceback", "show where in the code an error came from, to report it"),
        ):
            self.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; what is left over is an error of this command, and not of the one above it."""
        if self._subparsers:
            for word in takewhile(lambda word: word.startswith("-"), args or ()):
                if word.split("=")[0] not in self._option_string_actions:
                    self.error(f"{self._stray(word)}; options follow the command, as in gpumem plan --limit 70%")
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(self._stray(left[0]))
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, in one line."""
        lacking = re.fullmatch(r"the following arguments are required: ([^,]*).*", message)
        if lacking:
            message = f"{lacking[1]} is missing: {self._help_of(lacking[1])}"
        problem = message.removeprefix("argument ").replace("expected one argument", "a value must follow")
        problem = problem.replace("ignored explicit argument", "it takes no value, not")
        self.exit(2, f"gpumem: error: {' '.join(problem.split())} (see {self.prog} --help)\n")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Read a value; a reader's objection is no matter of usage, and passes as it is."""
        if not isinstance(action.type, Reader):
            return super()._get_value(action, arg_string)
        try:
            return action.type(arg_string)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(action, str(error)) from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(None, str(unknown(value, action.choices, str(action.metavar))))

    def _stray(self, left: str) -> str:
        name = left.split("=")[0]
        options = [option for action in self._actions for option in action.option_strings]
        if name.startswith("-"):
            return f"{name}: {self.prog} has no such option{meant(name, options)}"
        problem = f"{left!r:.60}: {self.prog} takes no such argument"
        return problem + (
            "; did you mean '--limit " + left + "'?" if "--limit" in options and left[:1].isdigit() else ""
        )

    def _help_of(self, name: str) -> str:
        for action in self._actions:
            if name in (action.metavar, action.dest):
                return ", ".join(action.choices) if action.choices else str(action.help or "")
        return ""


class _Formatter(argparse.HelpFormatter):
    """Examples keep their lines; the list of commands has no line for the list itself."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """What takes all that follows is a file and its arguments."""
        if action.nargs == argparse.REMAINDER:
            return f"{action.metavar} ..."
        return super()._format_args(action, default_metavar)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """As from Python 3.13 on, so that the pages show what every version prints: `-o, --out FILE`."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def add_arguments(self, actions: Any) -> None:
        actions = list(actions)
        if len(actions) == 1 and isinstance(actions[0], argparse._SubParsersAction):  # noqa: SLF001  no public name
            actions = list(actions[0]._get_subactions())  # noqa: SLF001  as argparse's own formatter does
        super().add_arguments(actions)


def whole(text: str) -> int:
    """Read an option's whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is not a whole number") from None


def number(text: str) -> float:
    """Read an option's number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is not a number") from None


def positive(text: str, what: str) -> float:
    """Read a number above 0."""
    if not 0 < (value := number(text)) < math.inf:
        raise ValueError(f"{what}: {value} is not positive and finite")
    return value


def finite(text: str, what: str) -> float:
    """Read a number that is not below 0."""
    arguments.finite(**{what: (value := number(text))})
    return value


def at_least(least: int) -> Callable[[str, str], int]:
    """Return what reads a whole number that is not below `least`."""

    def read(text: str, what: str) -> int:
        arguments.at_least(least, **{what: (value := whole(text))})
        return value

    return read


def word(known: Iterable[str] | str) -> Callable[[str, str], str]:
    """Return what reads one of some words; `module:NAME` is where they stand, imported once somebody gives one."""

    def read(text: str, what: str) -> str:
        one_of(what, text, resolve_name(known) if isinstance(known, str) else known)
        return text

    return read
