"""What is wrong with the settings, in words an operator can act on.

pydantic names the place and the kind of a mistake; the tables here say it in the terms of a YAML file,
with what to write instead.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel

_WRONG = {
    "missing": "is required; set it in the file, by SIDECAR_{upper} or by --{name}",
    "string_type": "must be text, not {input}; put it in quotes",
    "int_type": "must be a whole number, not {input}",
    "float_type": "must be a number, not {input}",
    "bool_type": "must be true or false, not {input}",
    "tuple_type": "must be a list, not {input}; write [a, b]",
    "model_type": "must be a mapping of settings, not {input}",
    "literal_error": "must be {expected}, not {input}",
    "greater_than_equal": "must be at least {ge}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping, not {input}",
    "too_long": "must not have more than {max_length} entries",
    "string_too_long": "must have at most {max_length} characters",
}


def line(error: Any, root: type[BaseModel], sources: Mapping[str, str]) -> str:
    """`path: message` of a pydantic error; `sources`: the flag or variable that gave a top-level value."""
    loc = error["loc"]
    if not loc:  # of the whole: it names the path itself
        return str(error["msg"]).removeprefix("Value error, ")
    path = ".".join(str(part) for part in loc if part != "[key]")
    source = sources.get(path)
    return f"{path}: {_message(error, loc, root)}{f' (given by {source})' if source else ''}"


def _message(error: Any, loc: tuple[str | int, ...], root: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        return _unknown(loc, root)
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] != "missing" and error.get("input") is None:
        return "has no value; give it one or remove the key"
    nested = error["type"] == "missing" and len(loc) > 1
    message = "is required" if nested else _WRONG.get(error["type"])
    if message is None:
        return str(error["msg"])
    facts = {**error.get("ctx", {}), "name": loc[-1], "upper": str(loc[-1]).upper()}
    return message.format(**facts, input=_shown(error.get("input")))


def _shown(value: object) -> str:
    """A wrong value in the file's own words; long ones and containers by what they are."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else "something so long"


def _unknown(loc: tuple[str | int, ...], root: type[BaseModel]) -> str:
    section: Any = root
    for part in loc[:-1]:
        if get_origin(section) is dict:  # `part` is a key of the user's
            section = get_args(section)[1]
        else:
            section = section.model_fields[str(part)].annotation
    near = get_close_matches(str(loc[-1]), section.model_fields, 1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(section.model_fields)}"
    return f"unknown key; {hint}"
