"""Members of an object found as it passes: keys, nesting, bounds."""

import pytest

from sidecar.core.scanning import MAX_HELD, ObjectScanner

WANTED = (b"model", b"n")

DOCUMENTS: dict[str, tuple[bytes, dict[bytes, bytes], bool]] = {
    "members by name": (b'{"model":"m","x":1,"n":2}', {b"model": b'"m"', b"n": b"2"}, True),
    "space around everything": (b' \n{ "model" : "m" , "n" : 2 } \n', {b"model": b'"m"', b"n": b"2"}, True),
    "an object as value": (b'{"n":{"a":[1,"}"],"model":3}}', {b"n": b'{"a":[1,"}"],"model":3}'}, True),
    "an escaped key is the same key": (b'{"m\\u006fdel":1}', {b"model": b"1"}, True),
    "an escaped quote ends no string": (b'{"x":"a\\",\\"model\\":1","n":2}', {b"n": b"2"}, True),
    "an escaped backslash does not escape the quote": (b'{"x":"a\\\\","n":2}', {b"n": b"2"}, True),
    "the last of two": (b'{"n":1,"n":2}', {b"n": b"2"}, True),
    "a value equal to a key is no key": (b'{"x":"model","n":1}', {b"n": b"1"}, True),
    "keys inside arrays are none": (b'{"x":[{"n":1},{"model":2}],"n":3}', {b"n": b"3"}, True),
    "not closed": (b'{"n":1,"x":[', {b"n": b"1"}, False),
    "closed by the wrong bracket": (b'{"n":1]', {b"n": b"1"}, False),
    "an array": (b'["n"]', {}, False),
    "what follows the object is not looked at": (b'{"n":1}{"n":2}', {b"n": b"1"}, True),
    "empty": (b"", {}, False),
    "blank": (b"  \n", {}, False),
}


@pytest.mark.parametrize(("document", "members", "complete"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_members_at_any_cut(document: bytes, members: dict[bytes, bytes], complete: bool) -> None:
    for step in (1, 2, 3, 1000):
        scanner = ObjectScanner(WANTED)
        for at in range(0, len(document), step):
            scanner.feed(document[at : at + step])
        assert (scanner.members, scanner.complete) == (members, complete)


COUNTED = {
    "strings": (b'{"prompt":["a","b]","c"]}', 3),
    "arrays": (b'{"prompt":[[1,2],[3]]}', 2),
    "arrays between strings": (b'{"prompt":[[1,2],"a",[3]]}', 3),
    "numbers": (b'{"prompt":[1,2,3]}', 0),
    "none": (b'{"prompt":[]}', 0),
    "a string alone": (b'{"prompt":"a"}', None),
    "an object": (b'{"prompt":{"a":["b"]}}', None),
    "another member": (b'{"x":["a"]}', None),
}


@pytest.mark.parametrize(("document", "elements"), COUNTED.values(), ids=COUNTED.keys())
def test_elements_of_the_counted_array(document: bytes, elements: int | None) -> None:
    for step in (1, 2, 1000):
        scanner = ObjectScanner(WANTED, counted=b"prompt")
        for at in range(0, len(document), step):
            scanner.feed(document[at : at + step])
        assert scanner.elements == elements


NESTED = {
    "messages": (b'{"role":"user","content":"a \\"{[\\" b"},', 0),
    "prompts": (b'"a \\"{[\\" b",', 1),
    "prompts of token ids": (b"[12,13,14],", 1),
    "numbers": (b"1234567,", 0),
    "deep nesting": (b"[" * 20 + b"]" * 20 + b",", None),
}


@pytest.mark.parametrize(("element", "counts"), NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("piece", [100, 1500, 4096, 70_000, 10_000_000])
def test_long_nested_values_are_passed_over(element: bytes, counts: int | None, piece: int) -> None:
    copies = 200_000 // len(element)
    document = b'{"n":1,"prompt":[' + (element * copies)[:-1] + b'],"model":[{"n":2}],"x":{"n":3}}'
    scanner = ObjectScanner(WANTED, counted=b"prompt")
    for at in range(0, len(document), piece):
        scanner.feed(document[at : at + piece])
    assert scanner.complete
    assert scanner.members == {b"n": b"1", b"model": b'[{"n":2}]'}
    if counts is not None:
        assert scanner.elements == counts * copies


def test_a_piece_that_takes_too_many_steps_is_given_up() -> None:
    scanner = ObjectScanner(WANTED)
    scanner.feed(b'{"n":1' + b',"x":0' * 100_000 + b"}")
    assert not scanner.complete


def test_a_member_that_is_too_long_is_given_up_and_no_other() -> None:
    scanner = ObjectScanner(WANTED)
    scanner.feed(b'{"model":"' + b"a" * (2 * MAX_HELD))
    assert scanner._held is None
    scanner.feed(b'","n":2}')
    assert scanner.members == {b"n": b"2"}


def test_a_key_that_is_too_long_is_none() -> None:
    scanner = ObjectScanner(WANTED)
    scanner.feed(b'{"' + b"k" * 100_000)
    assert scanner._held is None
    scanner.feed(b'":1,"n":2}')
    assert scanner.members == {b"n": b"2"}


def test_what_is_held_over_all_members_is_bounded() -> None:
    scanner = ObjectScanner(WANTED)
    scanner.feed(b'{"x":0')
    for _ in range(100):
        scanner.feed(b',"model":"' + b"a" * 10_000 + b'"')
    assert sum(map(len, scanner.members.values())) <= MAX_HELD
