"""Online allocators as the frameworks have them: a file each, all under the protocol of `pool.online`.

`native` is cudaMalloc, `cnmem` the pool of Theano and SINGA, `bfc` TensorFlow's, `caching` PyTorch's, `buddy` a binary
buddy system, `streams` Waterwave's for several streams. Read `native` first. `_blocks` and `_last_use` are what they
share, `_regions` what `bfc` and `streams` do, `_segments` is `caching`'s.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.pool.allocators.bfc import BFC as BFC
    from gpumem.pool.allocators.buddy import Buddy as Buddy
    from gpumem.pool.allocators.caching import Caching as Caching
    from gpumem.pool.allocators.cnmem import CnMem as CnMem
    from gpumem.pool.allocators.native import Native as Native
    from gpumem.pool.allocators.streams import MultiStream as MultiStream

lazy_interface(__name__)
