"""What CUDA does in another way than the host, each with its reason: differences that a comparison expects.

`FORMS` is the one table. A form is some ops of the device's list for some ops of the host's, as many units as there are
of both, within a module and a phase; sizes are not compared inside of one.
"""

from __future__ import annotations

from dataclasses import dataclass

FROM_HOST, TO_HOST, COUNTER = "(from-host)", "(to-host)", "(counter)"


@dataclass(frozen=True, slots=True)
class Form:
    """What the device's list has, and what the host's has instead.

    Parameters
    ----------
    what : str
    device, host : tuple of str
        Alternatives, each the ops of one unit: `mul*2` is two of them, `mul?` and `mul*2?` are at most so many, `mul+`
        and `mul*` at least one and any number. `(counter)` and the like are ops by what they do, see `explain.called`.
    why : str
    around : str
        What either list may have besides, for each unit, anywhere in that phase.
    """

    what: str
    device: tuple[str, ...]
    host: tuple[str, ...]
    why: str
    around: str = ""


KEEPS_MASK = "CUDA has one op that keeps a mask of a byte a value; the host multiplies by noise, which it keeps"
ONE_KERNEL = "on CUDA attention is one op, by form of PyTorch's choosing; the host has a form of its own, or many ops"
CELLS = (
    "on the host a layer is one op or one product over all steps; on CUDA cuDNN's op is not known, cells stand for it"
)
ROW_NORM = "CUDA has one op that keeps a number for each row; on the host it is made of others"
CONVERTS = "on CUDA one kernel converts from half precision and sums in full"
ON_HOST = "optimizers keep counters on the host on CUDA, where they are no ops of the device"
ANOTHER = "of all parameters at once the optimizer (Adagrad, ASGD, RAdam, Rprop) works by another formula"
LENGTHS = "lengths are tensors on the host, which are no operands on CUDA"
LAYOUT = "the kernel that convolves lays its gradients out; one unlike its parameter is copied"
ROWS = "on CUDA group norm lays out what it makes in rows, the host keeps the channels last, which pooling looks at"
MATH = (
    "bmm*2 _safe_softmax mul*3? add? ones? tril? scalar_tensor*2? where? clone*4? _to_copy*4? "
    "empty_like? bernoulli_? div_?"
)
MATH_BACKWARD = "bmm+ _softmax_backward_data mul*3? sum*2? clone*4? _to_copy*4?"
FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"
LAID_OUT = "clone*4? sum*2? add*2?"  # what follows is laid out in another order, or keys are repeated
CELL = (
    "addmm+ mm* add* add_* sigmoid_* sigmoid* tanh_* tanh* mul* stack* cat* sum* clone* unsafe_chunk* sub* rsub* "
    "lerp* relu*"
)
CELL_BACKWARD = "mm+ mul* tanh_backward* sigmoid_backward* cat* sum* add* add_* stack* threshold_backward* neg* clone*"
SUMMED = "cat* add* add_* stack*"  # gradients of slices have no module
# rows that are rules, not ops of fixed names
LISTS = "lists", "on CUDA optimizers work on all parameters at once (foreach), on the host on one after the other"
NUMBERS = "numbers", "a number that is assigned is a value on the host, which CUDA takes as an argument"
FORMS = (
    Form("dropout", ("native_dropout",), ("empty_like bernoulli_ div_ mul",), KEEPS_MASK),
    Form("dropout", ("native_dropout_backward",), ("mul",), KEEPS_MASK),
    Form(
        "attention",
        (f"{FLASH} clone?", f"{EFFICIENT} clone?"),
        (f"{FLASH}_for_cpu clone?", MATH),
        ONE_KERNEL,
        LAID_OUT,
    ),
    Form("attention", (MATH,), (f"{FLASH}_for_cpu clone?",), ONE_KERNEL, LAID_OUT),
    Form(
        "attention",
        (f"{FLASH}_backward", f"{EFFICIENT}_backward"),
        (f"{FLASH}_for_cpu_backward", MATH_BACKWARD),
        ONE_KERNEL,
        LAID_OUT,
    ),
    Form("attention", (MATH_BACKWARD,), (f"{FLASH}_for_cpu_backward",), ONE_KERNEL, LAID_OUT),
    Form("RMS norm", ("_fused_rms_norm",), ("pow mean add_ rsqrt mul*2? _to_copy*2?",), ROW_NORM),
    Form(
        "RMS norm",
        ("_fused_rms_norm_backward",),
        ("mul*8? sum*2? pow*2? div? add_? _to_copy*4?",),
        ROW_NORM,
    ),
    Form("softmax", ("_softmax", "_log_softmax"), ("_to_copy _softmax", "_to_copy _log_softmax"), CONVERTS),
    Form(
        "softmax",
        ("_softmax_backward_data", "_log_softmax_backward_data"),
        ("_softmax_backward_data _to_copy", "_log_softmax_backward_data _to_copy"),
        CONVERTS,
    ),
    Form(
        "one_hot",
        ("", "max _local_scalar_dense"),
        ("aminmax _local_scalar_dense*2",),
        "on the host it looks for classes out of range; on CUDA it asks for the largest where their number is not said",
    ),
    Form(
        "recurrent layers",
        (CELL,),
        ("mkldnn_rnn_layer+ clone*", "mm add* add_* clone? stack?", "addmm add_+ add*"),
        CELLS,
    ),
    Form(
        "recurrent layers",
        (CELL_BACKWARD,),
        ("mkldnn_rnn_layer_backward+", "stack sum? mm", "mm sum? add_+ slice_backward*"),
        CELLS,
        SUMMED,
    ),
    Form("counters", (f"{COUNTER}*",), (f"{COUNTER}*",), ON_HOST),
    Form(
        "optimizers",
        ("_foreach_mul", "_foreach_sqrt _foreach_reciprocal_ _foreach_add_ _foreach_addcmul_"),
        ("mul* mul_*",),
        ANOTHER,
    ),
    Form("optimizers", ("_foreach_sub _foreach_addcmul_*2?",), ("copy_* mul_*",), ANOTHER),
    Form("optimizers", ("where+ copy_*",), ("clone+ index_put_+",), ANOTHER),
    Form(
        "packed sequences",
        ("_pack_padded_sequence",),
        ("_pack_padded_sequence sort? index? empty? _local_scalar_dense*2?",),
        LENGTHS,
        "sort? _local_scalar_dense*4? empty*2? index*2?",
    ),
    Form("CTC", ("_ctc_loss",), ("_ctc_loss",), LENGTHS),
    Form("CTC", ("_ctc_loss_backward",), ("_ctc_loss_backward",), LENGTHS),
    Form(
        "packed sequences",
        ("",),
        ("_local_scalar_dense*2 empty index",),
        "where they are unpacked, lengths are put in order on the host",
    ),
    Form(NUMBERS[0], ("scalar_tensor copy_",), ("fill_",), NUMBERS[1]),
    Form("layouts", ("new_empty_strided copy_",), ("",), LAYOUT),
    Form("layouts", ("",), ("new_empty_strided copy_",), LAYOUT),
    Form("group norm", ("",), ("as_strided_",), ROWS),
    Form("group norm", ("",), ("new_zeros copy_",), ROWS),
    Form(
        "loaders",
        ("",),
        ("empty+ random_+ _local_scalar_dense+ randperm*",),
        "loaders draw seeds and orders on the host",
    ),
    Form(
        "copies", (f"{FROM_HOST}+ {TO_HOST}*", f"{TO_HOST}+"), ("stack*",), "batches are made on the host, and copied"
    ),
)
ALSO = {"norm": "linalg_vector_norm"}  # what is called otherwise of lists
