"""The only importer of PyTorch, so that its absence is told once; what others need of its modules goes through here."""

from __future__ import annotations

try:
    import torch as torch
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.autograd.function import BackwardCFunction as BackwardCFunction
    from torch.library import Library as Library
    from torch.nn.modules.module import (
        register_module_forward_hook as register_module_forward_hook,
        register_module_forward_pre_hook as register_module_forward_pre_hook,
    )
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook as register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook as register_optimizer_step_pre_hook,
    )
    from torch.overrides import TorchFunctionMode as TorchFunctionMode
    from torch.utils._device import _device_constructors as _device_constructors
    from torch.utils._python_dispatch import (
        TorchDispatchMode as TorchDispatchMode,
        _disable_current_modes as _disable_current_modes,
        _get_current_dispatch_mode_stack as _get_current_dispatch_mode_stack,
    )
    from torch.utils.flop_counter import flop_registry as flop_registry
    from torch.utils.weak import WeakIdKeyDictionary as WeakIdKeyDictionary
except ImportError as error:
    raise ImportError(f"gpumem.torch needs PyTorch 2.6 or later: pip install 'gpumem[torch]' ({error})") from error
