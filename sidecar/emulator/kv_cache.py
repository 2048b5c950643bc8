"""The KV cache of an engine: blocks of tokens, and a prefix cache over them. Pure.

As in vLLM (`vllm/v1/core/kv_cache_manager.py`, `block_pool.py`): a full block of a prompt is found again
by a hash over its tokens and all before it; a block that nobody uses keeps its content until it is the one
that was released longest ago and its place is needed. A sequence's last blocks are released first, since
a common prefix is worth more than a tail.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

BlockHash = bytes


def block_hashes(tokens: Sequence[str | int], block_size: int) -> tuple[BlockHash, ...]:
    """One hash for each full block, over its tokens and all before it."""
    hashes, before = [], b""
    for end in range(block_size, len(tokens) + 1, block_size):
        content = "\0".join(map(repr, tokens[end - block_size : end]))
        before = hashlib.blake2b(before + content.encode(errors="surrogatepass"), digest_size=16).digest()
        hashes.append(before)
    return tuple(hashes)


class KvCache:
    """`blocks` blocks of `block_size` tokens each; block numbers are the caller's to keep."""

    def __init__(self, blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.blocks, self.block_size = blocks, block_size
        self._prefix_caching = prefix_caching
        self._users = [0] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}

    @property
    def tokens(self) -> int:
        """How many tokens fit in."""
        return self.blocks * self.block_size

    @property
    def used(self) -> int:
        """Blocks that a sequence uses."""
        return self.blocks - len(self._free)

    def find(self, hashes: Sequence[BlockHash], most_tokens: int) -> list[int]:
        """The cached blocks of the longest known prefix of at most that many tokens."""
        found: list[int] = []
        if self._prefix_caching:
            for block_hash in hashes[: most_tokens // self.block_size]:
                block = self._block_of.get(block_hash)
                if block is None:
                    break
                found.append(block)
        return found

    def fits(self, found: list[int], tokens: int) -> bool:
        """A sequence of `tokens` that shares those cached blocks can have the rest."""
        revived = sum(not self._users[block] for block in found)
        return -(-tokens // self.block_size) - len(found) <= len(self._free) - revived

    def share(self, blocks: list[int]) -> None:
        """One more sequence uses these cached blocks."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def grow(self, held: list[int], before: int, tokens: int, hashes: Sequence[BlockHash]) -> bool:
        """Add blocks to `held` until `tokens` fit. False, and nothing changed, when too few are free.

        `before` of the tokens were there already; blocks that become full are known by `hashes` from now on.
        """
        missing = -(-tokens // self.block_size) - len(held)
        if missing > len(self._free):
            return False
        if missing > 0:
            held.extend(self._take() for _ in range(missing))
        if self._prefix_caching and before < len(hashes) * self.block_size:
            for index in range(before // self.block_size, min(tokens // self.block_size, len(hashes))):
                self._remember(held[index], hashes[index])
        return True

    def release(self, held: list[int]) -> None:
        """A sequence gives up its blocks; empties `held`."""
        for block in reversed(held):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
        held.clear()

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._users[block] = 1
        forgotten = self._hash_of.pop(block, None)
        if forgotten is not None:
            del self._block_of[forgotten]
        return block

    def _remember(self, block: int, block_hash: BlockHash) -> None:
        """A second block of the same content stays unknown: the first is found already."""
        if block not in self._hash_of and block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash
