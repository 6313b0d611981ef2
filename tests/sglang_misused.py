"""SGLang's right kernels, each called with one wrong argument: a backend file a worker loads."""

from dataclasses import replace

import torch

from treeproof import register
from treeproof.backends.adapters import sglang_cuda_tree, sglang_extend, sglang_loader, sglang_tree
from treeproof.contract.case import MaskMode
from treeproof.contract.registry import load

TREE = load("treeproof.backends.adapters.sglang_tree:sglang-tree")
EXTEND = load("treeproof.backends.adapters.sglang_extend:sglang-extend")


def tree(name):
    return register(name, consumes=TREE.consumes, capabilities=TREE.capabilities)


def extend(name):
    return register(
        name,
        consumes=EXTEND.consumes | {"seq_lens", "req_to_token", "request_slots"},
        capabilities=EXTEND.capabilities,
        numerics=EXTEND.numerics,
    )


@tree("accept-links-swapped")
class AcceptLinksSwapped(sglang_tree.SglangTree):
    def accept(self, x, target_predict):
        child, sibling = x.retrieve_next_token, x.retrieve_next_sibling
        return super().accept(
            replace(x, retrieve_next_token=sibling, retrieve_next_sibling=child), target_predict
        )


@tree("build-links-swapped")
class BuildLinksSwapped(sglang_tree.SglangTree):
    """The kernel is handed either buffer for the other."""

    def tree(self, c, rows):
        mask, positions, index, child, sibling, tokens = super().tree(c, rows)
        return mask, positions, index, sibling, child, tokens


@tree("index-without-offset")
class IndexWithoutOffset(sglang_tree.SglangTree):
    def accept(self, x, target_predict):
        rows = x.retrieve_index.shape[1]
        return super().accept(replace(x, retrieve_index=x.retrieve_index % rows), target_predict)


@tree("root-in-seq-lens")
class RootInSeqLens(sglang_tree.SglangTree):
    def tree(self, c, rows):
        return super().tree(replace(c, seq_lens=c.seq_lens + 1), rows)


@tree("qlen-for-full")
class QlenForFull(sglang_tree.SglangTree):
    def tree(self, c, rows):
        return super().tree(replace(c, mask_mode=MaskMode.QLEN_ONLY), rows)


@tree("depth-one-short")
class DepthOneShort(sglang_tree.SglangTree):
    """The number of draft steps, which bounds how far up a row looks, one too small."""

    def tree(self, c, rows):
        return super().tree(replace(c, spec_steps=c.spec_steps - 1), rows)


@tree("commit-without-offset")
class CommitWithoutOffset(sglang_tree.SglangTree):
    def commit(self, x, accepted, k_cache, v_cache):
        index, rows = accepted.accept_index, x.retrieve_index.shape[1]
        local = torch.where(index < 0, -1, index % rows)
        return super().commit(x, replace(accepted, accept_index=local), k_cache, v_cache)


@tree("commit-without-root")
class CommitWithoutRoot(sglang_tree.SglangTree):
    """The number of accepted drafts where that of accepted rows is meant."""

    def commit(self, x, accepted, k_cache, v_cache):
        shorter = replace(accepted, accept_len=accepted.accept_len - 1)
        return super().commit(x, shorter, k_cache, v_cache)


@tree("cuda-buffers")
class CudaBuffers(sglang_cuda_tree.SglangCudaTree):
    """No misuse: what the CUDA kernels are handed, handed to the Triton kernels."""

    def load(self):
        kernels = sglang_loader.load("sglang.kernels.ops.speculative.spec_tree", "xpu")
        self._launch = kernels.sgl_build_tree_kernel_triton
        self._verify = kernels.verify_tree_greedy_triton


@extend("mask-indptr-shifted")
class MaskIndptrShifted(sglang_extend.SglangExtend):
    def attend(self, x, *tensors):
        return super().attend(replace(x, mask_indptr=x.mask_indptr + 1), *tensors)


@extend("mask-of-tree-alone")
class MaskOfTreeAlone(sglang_extend.SglangExtend):
    """The cells of a QLEN_ONLY mask where those of a FULL_MASK are read."""

    def attend(self, x, *tensors):
        starts, cells = x.mask_indptr.tolist(), torch.zeros_like(x.custom_mask)
        rows, prefixes = x.qo_indptr.diff().tolist(), x.seq_lens.tolist()
        at = 0
        for start, count, prefix in zip(starts, rows, prefixes, strict=False):
            full = x.custom_mask[start : start + count * (prefix + count)].view(count, -1)
            cells[at : at + count * count] = full[:, prefix:].reshape(-1)
            at += count * count
        return super().attend(replace(x, custom_mask=cells), *tensors)


@extend("root-in-prefix")
class RootInPrefix(sglang_extend.SglangExtend):
    """Prefix lists one key longer than the KV that is ready."""

    def attend(self, x, *tensors):
        lengths = (x.seq_lens + 1).tolist()
        lists = [
            x.req_to_token[slot, :n]
            for slot, n in zip(x.request_slots.tolist(), lengths, strict=True)
        ]
        indptr = torch.nn.functional.pad((x.seq_lens + 1).cumsum(0), (1, 0))
        return super().attend(replace(x, kv_indptr=indptr, kv_indices=torch.cat(lists)), *tensors)
