"""Our own Triton kernels: tree attention and the stages around it, small and readable before fast.

`@triton.jit` decides on import whether a kernel is interpreted or compiled, so these modules are
imported inside the process that runs them, after `adapters.triton_mode.import_triton`.
"""
