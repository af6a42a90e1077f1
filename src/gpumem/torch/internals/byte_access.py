"""What of PyTorch touches bytes past its dispatcher, so that no mode sees it: methods and functions, by name.

Of a storage's methods those are listed that touch no bytes (`LOOKS`), that read them and are done (`READS`), and that
write them and are done (`WRITES`). Any other may keep the address, and write there at any time: such a storage stays on
the device for good. So a method that a new PyTorch adds costs memory, and never a bit.
"""

from __future__ import annotations

from typing import Any

from gpumem.torch.internals import _VF, C, torch

LOOKS = frozenset(dir(object)) - {"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__"} | {
    *("__len__", "_expired", "_fix_weakref", "_free_weak_ref", "_get_filename", "_get_shared_fd", "_new_shared"),
    *("_release_ipc_counter", "_release_ipc_counter_cuda", "_shared_decref", "_shared_incref", "_weak_ref"),
    *("element_size", "get_device", "is_pinned", "is_shared", "nbytes", "new", "resizable", "size", "untyped"),
}
TYPES = {"bfloat16", "bool", "byte", "char", "complex_double", "complex_float", "double", "float", "half", "int"} | {
    *("long", "short", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
}
READS = (
    TYPES
    | {"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__"}
    | {
        *("__getitem__", "__iter__", "_to", "_write_file", "clone", "cpu", "cuda", "hpu", "mps", "pin_memory", "to"),
        *("tolist", "type"),
    }
)
WRITES = {"__setitem__", "__delitem__", "_byteswap", "byteswap", "copy_", "fill_", "_set_from_file", "resize_"}
# of tensors: what goes past the dispatcher; whatever else they do, a mode sees
TENSOR_READS = ("__repr__", "tolist", "__deepcopy__", "__reduce_ex__")
TENSOR_KEEPS = ("numpy", "__array__", "data_ptr", "const_data_ptr", "mutable_data_ptr", "__dlpack__", "share_memory_")
TENSOR_WRITES = ("apply_", "map_", "map2_")  # they read the others that they are given
# they write files from C++, of parameters, attributes and constants that nobody can list
SAVES = ("save", "save_to_buffer")
MOBILE = ("_save_for_mobile", "_save_to_buffer_for_mobile")
WRITERS = (C.ScriptModule, (*SAVES, *MOBILE)), (C.ScriptFunction, SAVES), (torch.onnx, ("export",))
# in C++; they read tensors before they call an op, or where no mode sees it: scalars that a tensor is made of, lengths
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
FUNCTIONS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, ("tensor", "as_tensor", "asarray", "tensor_split", "sparse_coo_tensor", "set_rng_state", *RECURRENT)),
    (torch.random, ("set_rng_state",)),
    (_VF, (*RECURRENT, "_pad_packed_sequence")),
    (torch.Tensor, ("tensor_split", "new_tensor", "new")),
)
FILES = (C.PyTorchFileWriter, "write_record")  # of a checkpoint
EXCHANGE = "__dlpack_c_exchange_api__"  # a table of C functions: who finds none asks `__dlpack__`
NAMED_BY_ADDRESS = {  # functions of PyTorch that take an address for a name, or look whether there is one
    "torch.serialization": ("persistent_id",),
    "torch.storage": ("_to",),
    "torch._tensor": ("__deepcopy__", "_reduce_ex_internal"),
}
