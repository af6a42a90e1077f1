"""The convolutions of a trace, read from the shapes of the buffers that an op touches.

PyTorch's `convolution` reads image and filter, and writes the output; `convolution_backward` reads the output's
gradient, image and filter, and writes the gradients that are asked for. A file has the shape of the first tensor seen
on a buffer, and an op may touch another view of it: so the filter, which nobody views, says how many channels there
are, and the other two are held against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gpumem.base.arguments import strict
from gpumem.trace import Attributes, Shape, Trace
from gpumem.trace.kinds import WORKSPACE

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"
OTHER_WAY = {FORWARD: INPUT_GRADIENT, INPUT_GRADIENT: FORWARD, WEIGHT_GRADIENT: WEIGHT_GRADIENT}
OPS = {"convolution": False, "convolution_backward": True}  # is it backward?
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # of an element
LEAST = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}  # PyTorch's attributes that are numbers
TRUTHS = ("transposed", "output_mask")  # and those that are truth values


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution of a batch of images, with as many dimensions of space as `filter` has.

    `direction`: `forward`, `input gradient` or `weight gradient`; a transposed convolution is the input gradient of the
    convolution that it transposes, and its input gradient is that one's forward. `batch`; `inputs`, `outputs`:
    channels of all groups; `image`, `output`, `filter`: their extent in space; `stride`, `padding`, `dilation`: per
    dimension; `groups`; `itemsize`: bytes of an element.

    >>> c = Convolution("forward", 100, 64, 128, (16, 16), (16, 16), (3, 3), (1, 1), (1, 1))
    >>> c.products, c.image_bytes, c.filter_bytes, c.output_bytes
    (1887436800, 6553600, 294912, 13107200)
    """

    direction: str
    batch: int
    inputs: int
    outputs: int
    image: Shape
    output: Shape
    filter: Shape
    stride: Shape
    padding: Shape
    dilation: Shape = (1, 1)
    groups: int = 1
    itemsize: int = 4

    def __str__(self) -> str:
        sides = ((self.batch, self.inputs, *self.image), (self.outputs, self.inputs // self.groups, *self.filter))
        image, weights = ("x".join(map(str, side)) for side in sides)
        return f"{self.direction} of {image} by {weights}, stride {'x'.join(map(str, self.stride))}"

    @property
    def products(self) -> int:
        """Multiplications of the plain method."""
        return self.batch * self.weights * math.prod(self.output)

    @property
    def weights(self) -> int:
        """Elements of the filter."""
        return self.outputs * (self.inputs // self.groups) * math.prod(self.filter)

    @property
    def image_bytes(self) -> int:
        """Bytes of the images."""
        return self.batch * self.inputs * math.prod(self.image) * self.itemsize

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.batch * self.outputs * math.prod(self.output) * self.itemsize

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filter."""
        return self.weights * self.itemsize


@strict
def convolutions(trace: Trace) -> dict[int, tuple[Convolution, ...]]:
    """Return what each convolution of a trace computes.

    Parameters
    ----------
    trace : Trace
        Its buffers have shapes. PyTorch's attributes of an op (`stride`, `padding`, `dilation`, `groups`, `transposed`,
        `output_mask`) are used where they are there, and else inferred.

    Returns
    -------
    dict
        By op: one convolution, of a backward op one for each gradient that it writes; none where the shapes fit no
        convolution.

    Raises
    ------
    ValueError
        A buffer that a convolution touches has no shape, or one of these attributes is no such thing; the message
        names the op and the buffer, or the value.

    Notes
    -----
    Inferred are: groups, as the image's channels over those of the filter; stride and padding, as the smallest stride
    for which some padding of at most half the filter explains the extent of image and output, equal paddings on both
    sides before unequal ones; no dilation; transposed, where the channels say so, or say nothing and the output is at
    least twice as large as the input. O(ops).

    Examples
    --------
    >>> from gpumem import bundled
    >>> found = convolutions(bundled("vgg16"))
    >>> len(found)
    26
    >>> print(*found[max(found)], sep="\\n")
    weight gradient of 100x3x32x32 by 64x3x3x3, stride 1x1
    """
    stems = (name.rpartition("::")[2].partition(".")[0] for name in trace.ops.name)
    shapes: dict[int, tuple[Convolution, ...]] = {}
    forward: dict[tuple[int, int], Convolution | None] = {}  # by image and filter
    for op, stem in enumerate(stems):
        if stem in OPS:
            _check_shapes(trace, op)
            shapes[op] = _backward(trace, op, forward) if OPS[stem] else _forward(trace, op, forward)
    return shapes


def _check_shapes(trace: Trace, op: int) -> None:
    buffers, ops = trace.buffers, trace.ops
    for buffer in (*ops.reads[op].tolist(), *ops.writes[op].tolist()):
        if buffers.kind[buffer] != WORKSPACE and (buffers.shape is None or buffers.shape[buffer] is None):
            raise ValueError(
                f"op {op} {ops.name[op]!r}: buffer {buffer} has no shape, and a workspace depends on shapes"
            )


def _written(trace: Trace, op: int) -> list[int]:
    return [buffer for buffer in trace.ops.writes[op].tolist() if trace.buffers.kind[buffer] != WORKSPACE]


def _attributes(trace: Trace, op: int, weights: int) -> Attributes:
    """What PyTorch tells of an op by the filter `weights`; None is nothing told."""
    shapes = (trace.ops.attributes and trace.ops.attributes[op]) or {}
    given = {key: value for key, value in shapes.items() if key in (*LEAST, *TRUTHS) and value is not None}
    rank = len((trace.buffers.shape and trace.buffers.shape[weights]) or ()) - 2
    for key, value in given.items():
        if not (_truths(value) if key in TRUTHS else _numbers(value, LEAST[key], 1 if key == "groups" else rank)):
            wanted = "truth values" if key in TRUTHS else f"whole numbers from {LEAST[key]} on, one or one a dimension"
            raise ValueError(f"op {op} {trace.ops.name[op]!r}: {key} {value!r:.60} is no such thing; {wanted} would do")
    return given


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _truths(value: Any) -> bool:
    return all(type(item) is bool for item in _several(value))


def _numbers(value: Any, least: int, rank: int) -> bool:
    numbers = _several(value)
    return len(numbers) in (1, rank) and all(type(number) is int and number >= least for number in numbers)


def _forward(trace: Trace, op: int, known: dict[tuple[int, int], Convolution | None]) -> tuple[Convolution, ...]:
    reads, writes = trace.ops.reads[op].tolist(), _written(trace, op)
    if len(reads) < 2 or not writes:
        return ()
    image, weights = reads[:2]
    known[image, weights] = convolution = _read(trace, image, weights, writes[0], given=_attributes(trace, op, weights))
    return () if convolution is None else (convolution,)


def _backward(trace: Trace, op: int, known: dict[tuple[int, int], Convolution | None]) -> tuple[Convolution, ...]:
    """Its convolutions: those of the op that it is the gradient of, where that is in the trace, the other ways."""
    reads, writes = trace.ops.reads[op].tolist(), _written(trace, op)
    if len(reads) < 3:
        return ()
    gradient, image, weights = reads[:3]
    given = _attributes(trace, op, weights)
    convolution = known.get((image, weights)) or _read(trace, image, weights, gradient, given=given)
    if convolution is None:
        return ()
    shapes = trace.buffers.shape or ()
    made = _gradients([shapes[buffer] or () for buffer in writes], shapes[weights] or (), given)
    return tuple(
        replace(convolution, direction=OTHER_WAY[way] if convolution.direction == INPUT_GRADIENT else way)
        for way in made
    )


def _gradients(written: Sequence[Shape], weights: Shape, given: Attributes) -> list[str]:
    """Which gradients an op writes: that of the filter has its shape, that of the bias one dimension."""
    if "output_mask" in given:
        return [what for what, asked in zip((INPUT_GRADIENT, WEIGHT_GRADIENT), given["output_mask"]) if asked]
    rest = list(written)
    made = []
    if weights in rest:
        rest.reverse()  # a square layer's input gradient may have the filter's shape, and comes first
        rest.remove(weights)
        made.append(WEIGHT_GRADIENT)
    return [*([INPUT_GRADIENT] if any(len(shape) > 1 for shape in rest) else []), *made]


def _read(trace: Trace, source: int, weights: int, target: int, *, given: Attributes) -> Convolution | None:
    """The forward convolution of `source` to `target`; None where their shapes and the filter's do not go together."""
    buffers = trace.buffers
    x, w, y = ((buffers.shape and buffers.shape[k]) or () for k in (source, weights, target))
    if len(w) < 3 or not all(min(shape, default=0) > 0 for shape in (x, w, y)):
        return None
    outputs, each, *extent = w
    transposed = bool(given["transposed"]) if "transposed" in given else _transposed(x, w, y)
    image, output = (y, x) if transposed else (x, y)
    fits = len(image) == len(w) and image[1] % each == 0 and outputs % (image[1] // each) == 0
    groups = _each(given.get("groups", image[1] // each if fits else 1), 1)[0]
    inputs, rank = groups * each, len(extent)
    batch = [
        view[0]
        for view, channels in ((image, inputs), (output, outputs))
        if len(view) == len(w) and view[1] == channels
    ]
    spaces = _spaces((image, inputs), (output, outputs), batch[0], rank) if batch else None
    if spaces is None:
        return None
    dilation = _each(given.get("dilation", 1), rank)
    stride, padding = zip(*(_fitted(*dims) for dims in zip(*spaces, extent, dilation)))
    stride, padding = (_each(given.get(key, it), rank) for key, it in (("stride", stride), ("padding", padding)))
    itemsize = BYTES.get(buffers.dtype[weights] if buffers.dtype else "") or max(
        1, int(buffers.size[weights]) // math.prod(w)
    )
    way = INPUT_GRADIENT if transposed else FORWARD
    shape = (batch[0], inputs, outputs, *spaces, tuple(extent), stride, padding, dilation, groups, itemsize)
    return Convolution(way, *shape)


def _transposed(image_shape: Shape, weights: Shape, output_shape: Shape) -> bool:
    """Whether channels say that `image_shape` is what the filter's first dimension belongs to."""

    def fits(image: Shape, output: Shape) -> bool:
        return len(image) == len(weights) == len(output) and image[1] % weights[1] == 0 and output[1] == weights[0]

    larger = [after > before for before, after in zip(image_shape[2:], output_shape[2:])]
    twice = [after >= 2 * before for before, after in zip(image_shape[2:], output_shape[2:])]
    return fits(output_shape, image_shape) and all(twice if fits(image_shape, output_shape) else larger)


def _spaces(image: tuple[Shape, int], output: tuple[Shape, int], batch: int, rank: int) -> tuple[Shape, Shape] | None:
    """The extents of image and output in space; what one view does not say, the other and the sizes do."""
    shapes = [_space(shape, channels, batch, rank) for shape, channels in (image, output)]
    for view, (shape, channels) in enumerate((image, output)):
        if shapes[view] is None and (like := shapes[1 - view]) is not None:
            shapes[view] = _alike(math.prod(shape), batch * channels, like)
    return None if shapes[0] is None or shapes[1] is None else (shapes[0], shapes[1])


def _space(shape: Shape, channels: int, batch: int, rank: int) -> Shape | None:
    """The extent that a tensor's shape tells: as it is, with the channels elsewhere, or with more of them beside."""
    if len(shape) != rank + 2 or shape[0] != batch:
        return None
    if shape[1] != channels and channels in shape[2:]:
        rest = list(shape[1:])
        rest.remove(channels)
        return tuple(rest)
    return shape[2:] if shape[1] >= channels else None


def _alike(elements: int, planes: int, like: Shape) -> Shape | None:
    """The extent of so many planes of so many elements, in the proportions of another."""
    scale = (elements / planes / math.prod(like)) ** (1 / len(like))
    space = tuple(max(1, round(extent * scale)) for extent in like)
    return space if math.prod(space) * planes == elements else None


def _fitted(image: int, output: int, extent: int, dilation: int) -> tuple[int, int]:
    """The stride and the padding of one dimension that make so many outputs of so many inputs."""
    reach = dilation * (extent - 1)
    for pads in (range(0, reach + 2, 2), range(1, reach + 1, 2)):  # of both sides together, equal ones first
        for stride, both in product(range(1, image + 1), pads):
            if image + both > reach and (image + both - reach - 1) // stride + 1 == output:
                return stride, -(-both // 2)
    return max(1, round(image / output)), 0


def _each(value: Any, rank: int) -> Shape:
    """One number a dimension, of one number for all or of a list."""
    numbers = tuple(_several(value))
    return numbers * rank if len(numbers) == 1 else numbers
