"""Blocks and the prefix cache."""

from sidecar.emulator.kv_cache import KvCache, block_hashes

ABCD = block_hashes("abcd", 2)
EFGH = block_hashes("efgh", 2)


def held(cache: KvCache, tokens: int, hashes) -> list[int]:
    blocks: list[int] = []
    assert cache.grow(blocks, 0, tokens, hashes)
    return blocks


def test_only_full_blocks_have_a_hash_and_it_covers_all_before() -> None:
    assert len(block_hashes("abcde", 2)) == 2
    assert block_hashes("abcd", 2) == block_hashes("abcdef", 2)[:2]
    assert block_hashes("xbcd", 2)[1] != ABCD[1]
    assert block_hashes(["ab", "c"], 2) != block_hashes(["a", "bc"], 2)
    assert block_hashes([1, 2], 2) != block_hashes(["1", "2"], 2), "token ids are no words"


def test_blocks_are_counted_by_the_tokens_that_they_begin() -> None:
    cache = KvCache(3, 2)
    blocks = held(cache, 1, ())
    assert (len(blocks), cache.used) == (1, 1)
    assert cache.grow(blocks, 1, 2, ())
    assert len(blocks) == 1
    assert cache.grow(blocks, 2, 3, ())
    assert len(blocks) == 2
    assert not cache.grow(blocks, 3, 7, ())
    assert len(blocks) == 2, "nothing changes when too few are free"


def test_released_blocks_are_found_until_they_are_needed_the_oldest_and_last_first() -> None:
    cache = KvCache(4, 2)
    first = held(cache, 4, ABCD)
    cache.release(held(cache, 4, EFGH))
    cache.release(first)
    assert (first, cache.used) == ([], 0)
    assert [len(cache.find(hashes, 4)) for hashes in (ABCD, EFGH)] == [2, 2]
    held(cache, 1, ())
    assert [len(cache.find(hashes, 4)) for hashes in (ABCD, EFGH)] == [2, 1], "the last block of the oldest"
    held(cache, 4, ())
    assert [len(cache.find(hashes, 4)) for hashes in (ABCD, EFGH)] == [1, 0]


def test_a_shared_block_is_free_when_its_last_user_has_gone() -> None:
    cache = KvCache(4, 2)
    first = held(cache, 4, ABCD)
    found = cache.find(ABCD, 3)
    assert found == first[:1], "a whole block, of at most three tokens"
    second = list(found)
    cache.share(second)
    cache.release(first)
    assert cache.used == 1
    cache.release(second)
    assert cache.used == 0


def test_room_counts_the_found_blocks_that_nobody_uses() -> None:
    cache = KvCache(3, 2)
    cache.release(held(cache, 4, ABCD))
    found = cache.find(ABCD, 4)
    assert cache.fits(found, 6)
    assert not cache.fits(found, 7)
    cache.share(found)
    assert cache.fits(found, 6)
    assert not cache.fits([], 3)


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = KvCache(4, 2, prefix_caching=False)
    cache.release(held(cache, 4, ABCD))
    assert cache.find(ABCD, 4) == []
